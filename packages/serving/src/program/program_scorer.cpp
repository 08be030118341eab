// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/program_scorer.h>

#include <tessera/common/shorten.h>

#include "packages/serving/src/program/request_inputs.h"
#include "src/common/check.h"
#include "src/common/error_reason.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <mutex>
#include <string>
#include <utility>

namespace tessera::serving {

namespace {

constexpr const char* kScorer = "[ProgramScorer]";

std::vector<float> scores_of(
    const std::vector<at::Tensor>& outputs,
    int64_t candidates) {
  const at::Tensor scores = outputs.at(0).to(at::kFloat).contiguous().flatten();
  TESSERA_CHECK_VALUE(
      scores.numel() == candidates,
      "{} the first output of the program must have one number per candidate, which are {}, but has {}. Export a model that returns scores first.",
      kScorer,
      candidates,
      outputs[0].sizes());
  const float* first = scores.const_data_ptr<float>();
  return {first, first + candidates};
}

ScoreResult refused(const Program& program, const std::exception& error) {
  return {.version = program.version().number(), .error = reason_of(error)};
}

ScoreResult score(
    const Program& program,
    const RequestInputs& inputs,
    size_t request) {
  try {
    return {
        .version = program.version().number(),
        .scores = scores_of(
            program.run(inputs.of(request)), inputs.candidates(request))};
  } catch (const c10::Error& error) {
    return refused(program, error);
  }
}

}  // namespace

struct ProgramScorer::State {
  explicit State(std::shared_ptr<const Reader> from)
      : reader(std::move(from)),
        program(std::make_shared<const Program>(reader->version())) {}

  std::shared_ptr<const Program> newest() {
    if (!has_tried(*reader->version())) {
      // Meanwhile, other threads go on with the version before.
      const std::unique_lock<std::mutex> lock(loading, std::try_to_lock);
      if (lock) {
        load();
      }
    }
    return current();
  }

  std::shared_ptr<const Program> current() {
    const std::lock_guard<std::mutex> lock(mutex);
    return program;
  }

  bool has_tried(const Version& version) {
    const std::lock_guard<std::mutex> lock(mutex);
    return &program->version() == &version || refused.get() == &version;
  }

  // Loads the newest version. The caller holds `loading`.
  void load() {
    const std::shared_ptr<const Version> version = reader->version();
    if (has_tried(*version)) {
      return;  // another thread was faster
    }
    const std::shared_ptr<const Program> before = current();
    std::shared_ptr<const Program> next;
    try {
      next = std::make_shared<const Program>(version, before);
    } catch (const std::exception& error) {
      TORCH_WARN(
          kScorer,
          " goes on with version ",
          before->version().number(),
          ": ",
          reason_of(error));
    }
    const std::lock_guard<std::mutex> lock(mutex);
    program = next != nullptr ? next : before;
    refused = next != nullptr ? nullptr : version;
  }

  std::shared_ptr<const Reader> reader;
  std::mutex loading;  // held by the thread that loads
  std::mutex mutex;  // guards what follows
  std::shared_ptr<const Program> program;
  std::shared_ptr<const Version> refused = {};  // it can't be loaded
};

ProgramScorer::ProgramScorer(std::shared_ptr<const Reader> reader) {
  TESSERA_CHECK_VALUE(
      reader != nullptr,
      "{} expected a reader, but got nullptr. Make a Reader of the published directory.",
      kScorer);
  state_ = std::make_shared<State>(std::move(reader));
}

std::shared_ptr<const Program> ProgramScorer::program() const {
  return state_->newest();
}

std::vector<ScoreInputInfo> ProgramScorer::inputs() const {
  return inputs_of(state_->current()->signature());
}

std::vector<ScoreResult> ProgramScorer::operator()(
    std::span<const ScoreRequest> requests) const {
  if (requests.empty()) {
    return {};
  }
  const at::NoGradGuard no_grad;
  const std::shared_ptr<const Program> program = state_->newest();
  std::vector<ScoreResult> results(requests.size());
  try {
    const RequestInputs inputs(*program, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      results[i] = score(*program, inputs, i);
    }
  } catch (const std::exception& error) {
    if (requests.size() == 1) {
      results[0] = refused(*program, error);
      return results;
    }
    // One of the requests is wrong, and the others are not.
    for (size_t i = 0; i < requests.size(); ++i) {
      results[i] = (*this)(requests.subspan(i, 1)).front();
    }
  }
  return results;
}

}  // namespace tessera::serving
