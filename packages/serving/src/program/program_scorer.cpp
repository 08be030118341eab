// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/program_scorer.h>

#include <tessera/common/shorten.h>

#include "packages/serving/src/program/request_inputs.h"
#include "src/common/check.h"
#include "src/common/error_reason.h"

#include <ATen/core/grad_mode.h>

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
      : reader(std::move(from)) {}

  std::shared_ptr<const Reader> reader;
  std::mutex loading;  // held by the thread that loads
  std::mutex mutex;  // of `program`
  std::shared_ptr<const Program> program = {};

  std::shared_ptr<const Program> current() {
    const std::lock_guard<std::mutex> lock(mutex);
    return program;
  }

  std::shared_ptr<const Program> newest() {
    const std::shared_ptr<const Version> version = reader->version();
    std::shared_ptr<const Program> before = current();
    if (before != nullptr && &before->version() == version.get()) {
      return before;
    }
    std::unique_lock<std::mutex> lock(loading, std::defer_lock);
    if (before == nullptr) {
      lock.lock();
    } else if (!lock.try_lock()) {
      return before;  // another thread loads the new version
    }
    auto next = std::make_shared<const Program>(version, current());
    const std::lock_guard<std::mutex> change(mutex);
    program = std::move(next);
    return program;
  }
};

ProgramScorer::ProgramScorer(std::shared_ptr<const Reader> reader) {
  TESSERA_CHECK_VALUE(
      reader != nullptr,
      "{} expected a reader, but got nullptr. Make a Reader of the published directory.",
      kScorer);
  state_ = std::make_shared<State>(std::move(reader));
  state_->newest();
}

std::shared_ptr<const Program> ProgramScorer::program() const {
  return state_->newest();
}

std::vector<ScoreResult> ProgramScorer::operator()(
    std::span<const ScoreRequest> requests) const {
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
