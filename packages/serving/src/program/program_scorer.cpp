// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/program_scorer.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/features/id_rule.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

namespace tessera::serving {

namespace {

constexpr const char* kScorer = "[ProgramScorer]";

bool is_of_user(const Pt2Value& value) {
  return value.part == "row_splits" ||
      (!value.shape.empty() && value.shape[0] == 1);
}

// How many numbers a row has.
int64_t width_of(const Pt2Value& value) {
  int64_t width = 1;
  for (size_t axis = 1; axis < value.shape.size(); ++axis) {
    width *= value.shape[axis].value_or(1);
  }
  return width;
}

// The ids of an input. An input of numbers has none.
const IdLists& ids_of(const ScoreInput& input) {
  static const IdLists none;
  const auto* ids = std::get_if<IdLists>(&input.values);
  return ids == nullptr ? none : *ids;
}

void check_rows(const ScoreInput& input, int64_t rows) {
  const std::vector<int64_t>& splits = ids_of(input).row_splits;
  const int64_t ids = std::ssize(ids_of(input).ids);
  const bool fits = !std::holds_alternative<IdLists>(input.values) ||
      (splits.empty() ? ids == rows
                      : std::ssize(splits) == rows + 1 &&
               are_row_splits(splits.data(), rows, ids));
  TESSERA_CHECK_VALUE(
      input.rows == rows && fits,
      "[ProgramScorer] '{}' must have {} rows, but has {} rows with {} ids. Correct the request.",
      shorten(input.name),
      rows,
      input.rows,
      ids);
}

// A lookup of single ids refuses ids < 0, but a lookup of bags drops them. If a batch has
// requests of both kinds, single ids are looked up as bags. So they are checked here.
void check_single_ids(
    const ScoreInput& input,
    const Version::TableInfo& table) {
  for (const int64_t id : ids_of(input).ids) {
    TESSERA_CHECK_INDEX(
        id >= 0 || table.has_keys || !ids_of(input).row_splits.empty(),
        "[ProgramScorer] '{}' must have ids >= 0, but has {}. Correct the request.",
        shorten(input.name),
        id);
  }
}

void append(const ScoreInput& input, bool has_bags, IdLists& all) {
  const auto& [ids, row_splits] = ids_of(input);
  const int64_t begin = std::ssize(all.ids);
  all.ids.insert(all.ids.end(), ids.begin(), ids.end());
  if (!has_bags) {
    return;
  }
  if (all.row_splits.empty()) {
    all.row_splits.push_back(0);
  }
  for (int64_t row = 1; row <= input.rows; ++row) {
    all.row_splits.push_back(
        begin + (row_splits.empty() ? row : row_splits[row]));
  }
}

// The input with this name, or nullptr.
template <class Input>
const Input* find_input(
    const std::vector<Input>& inputs,
    const std::string& name) {
  const auto found = std::ranges::find(inputs, name, &Input::name);
  return found == inputs.end() ? nullptr : &*found;
}

// The inputs of a program with this signature, each once.
std::vector<ScoreInputInfo> inputs_of(const Pt2Signature& signature) {
  std::vector<ScoreInputInfo> inputs;
  for (const Pt2Value& value : signature.inputs) {
    // A feature may have two arguments: the activations and the row_splits.
    if (find_input(inputs, value.path) == nullptr) {
      inputs.push_back(
          {.name = value.path,
           .is_of_user = is_of_user(value),
           .width = value.part.empty() ? width_of(value) : 0});
    }
  }
  return inputs;
}

// The arguments of a program for some requests. Each feature is looked up once, for all
// requests together.
class RequestInputs {
 public:
  // Errors:  c10::ValueError naming an input that is missing, unknown or of another shape;
  //          std::out_of_range for ids that are out of range.
  RequestInputs(const Program& program, std::span<const ScoreRequest> requests)
      : requests_(requests) {
    const std::vector<ScoreInputInfo> inputs = inputs_of(program.signature());
    check_names(inputs);
    check_none_is_missing(inputs);
    for (const Pt2Value& value : program.signature().inputs) {
      if (value.part == "activations") {
        arguments_.push_back(activations(program.version(), value));
      } else if (value.part == "row_splits") {
        arguments_.push_back(row_splits(value));
      } else {
        arguments_.push_back(numbers(value));
      }
    }
  }

  // The arguments for one request. They share memory with this object.
  std::vector<at::Tensor> of(size_t request) const {
    std::vector<at::Tensor> tensors;
    for (const Argument& argument : arguments_) {
      tensors.push_back(argument[request]);
    }
    return tensors;
  }

 private:
  using Argument = std::vector<at::Tensor>;  // one of each request

  // The number of rows that an input of a request must have.
  int64_t rows_of(size_t request, const Pt2Value& value) const {
    return is_of_user(value) ? 1 : requests_[request].num_candidates;
  }

  // The input of a request with this name, or nullptr.
  const ScoreInput* find(size_t request, const std::string& name, bool of_user)
      const {
    const ScoreRequest& from = requests_[request];
    return find_input(of_user ? from.user : from.candidates, name);
  }

  // The inputs of all requests. Their numbers of rows are checked.
  std::vector<const ScoreInput*> find_all(const Pt2Value& value) const {
    std::vector<const ScoreInput*> inputs;
    for (size_t i = 0; i < requests_.size(); ++i) {
      inputs.push_back(find(i, value.path, is_of_user(value)));
      check_rows(*inputs.back(), rows_of(i, value));
    }
    return inputs;
  }

  void check_none_is_missing(const std::vector<ScoreInputInfo>& inputs) const {
    for (size_t i = 0; i < requests_.size(); ++i) {
      std::vector<std::string> missing;
      for (const auto& [name, of_user, width] : inputs) {
        if (find(i, name, of_user) == nullptr) {
          missing.push_back(fmt::format(
              "'{}' in {}", shorten(name), of_user ? "user" : "candidates"));
        }
      }
      TESSERA_CHECK_VALUE(
          missing.empty(),
          "[ProgramScorer] expected {}, but the request does not have it. Add what is missing.",
          fmt::to_string(fmt::join(missing, ", ")));
    }
  }

  // Refuses inputs that the model does not have, such as misspelt ones.
  void check_names(const std::vector<ScoreInputInfo>& known) const {
    const auto check = [&](const ScoreInput& input, bool of_user) {
      const ScoreInputInfo* found = find_input(known, input.name);
      TESSERA_CHECK_VALUE(
          found != nullptr,
          "[ProgramScorer] expected an input of the model, but got '{}'. Correct the name, or leave it out. GET /version of the server lists the inputs.",
          shorten(input.name));
      TESSERA_CHECK_VALUE(
          found->is_of_user == of_user,
          "[ProgramScorer] expected '{}' in {}, but got it in {}. Move it.",
          shorten(input.name),
          of_user ? "candidates" : "user",
          of_user ? "user" : "candidates");
    };
    for (const ScoreRequest& request : requests_) {
      for (const ScoreInput& input : request.user) {
        check(input, true);
      }
      for (const ScoreInput& input : request.candidates) {
        check(input, false);
      }
    }
  }

  Argument activations(const Version& version, const Pt2Value& value) const {
    const size_t feature = version.feature(value.path);
    const Version::FeatureInfo& info = version.features()[feature];
    bool has_bags = info.sequence_length > 0;
    const Version::TableInfo& table =
        version.tables()[version.table(info.table)];
    const std::vector<const ScoreInput*> inputs = find_all(value);
    for (const ScoreInput* input : inputs) {
      check_single_ids(*input, table);
      has_bags = has_bags || !ids_of(*input).row_splits.empty();
    }
    IdLists all;
    std::vector<int64_t> counts;  // rows of each request
    for (const ScoreInput* input : inputs) {
      append(*input, has_bags, all);
      counts.push_back(input->rows);
    }
    std::vector<int64_t> sizes{
        std::accumulate(counts.begin(), counts.end(), int64_t{0})};
    if (info.sequence_length > 0) {
      sizes.push_back(info.sequence_length);
    }
    sizes.push_back(info.dim);
    const at::Tensor rows = at::empty(sizes, at::kFloat);
    version.lookup(
        feature,
        all.batch(),
        {rows.mutable_data_ptr<float>(), static_cast<size_t>(rows.numel())});
    return rows.split_with_sizes(counts);
  }

  Argument row_splits(const Pt2Value& value) const {
    Argument argument;
    for (const ScoreInput* input : find_all(value)) {
      argument.push_back(
          at::tensor({int64_t{0}, std::ssize(ids_of(*input).ids)}, at::kLong)
              .to(value.dtype));
    }
    return argument;
  }

  Argument numbers(const Pt2Value& value) const {
    Argument argument;
    const int64_t width = width_of(value);
    for (const ScoreInput* input : find_all(value)) {
      const int64_t rows = input->rows;
      const auto* given = std::get_if<std::vector<float>>(&input->values);
      TESSERA_CHECK_VALUE(
          given != nullptr && std::ssize(*given) == rows * width,
          "[ProgramScorer] '{}' must have {} numbers for each of {} rows, but has {} in total. Correct the request.",
          shorten(value.path),
          width,
          rows,
          given == nullptr ? 0 : given->size());
      std::vector<int64_t> sizes{rows};
      for (size_t axis = 1; axis < value.shape.size(); ++axis) {
        sizes.push_back(value.shape[axis].value_or(1));
      }
      argument.push_back(
          at::tensor(*given, at::kFloat).view(sizes).to(value.dtype));
    }
    return argument;
  }

  std::span<const ScoreRequest> requests_;
  std::vector<Argument> arguments_;
};

// The first output, which has one number per candidate. Users without candidates have any
// number of them.
std::vector<float> first_output(
    const std::vector<at::Tensor>& outputs,
    int64_t candidates) {
  const at::Tensor scores = outputs.at(0).to(at::kFloat).contiguous().flatten();
  TESSERA_CHECK_VALUE(
      candidates == 0 || scores.numel() == candidates,
      "[ProgramScorer] the first output of the program must have one number per candidate, which are {}, but has {}. Export a model that returns scores first.",
      candidates,
      outputs[0].sizes());
  const float* first = scores.const_data_ptr<float>();
  return {first, first + scores.numel()};
}

// The programs of one version.
struct Programs {
  Programs() = default;
  // Errors:  c10::ValueError if there is none, or one that can't be loaded.
  Programs(std::shared_ptr<const Version> from, const Programs& before)
      : version(std::move(from)) {
    const bool has_query = !version->query_program().empty();
    if (has_query) {
      query = std::make_shared<const Program>(
          version, before.query, PublishedProgram::kQuery);
    }
    if (!has_query || !version->program().empty()) {
      scores = std::make_shared<const Program>(version, before.scores);
    }
  }

  std::shared_ptr<const Version> version = {};
  // nullptr: the version has no such program.
  std::shared_ptr<const Program> scores = {};
  std::shared_ptr<const Program> query = {};
};

// Runs a program of the version for each request.
std::vector<ScoreResult> run(
    const Version& version,
    const Program* program,
    std::span<const ScoreRequest> requests) {
  std::vector<ScoreResult> results(requests.size());
  for (ScoreResult& result : results) {
    result.version = version.number();
    if (program == nullptr) {
      result.error = "This version has no program for the request.";
    }
  }
  if (program == nullptr || requests.empty()) {
    return results;
  }
  try {
    const RequestInputs inputs(*program, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      try {
        results[i].scores = first_output(
            program->run(inputs.of(i)), requests[i].num_candidates);
      } catch (const c10::Error& error) {
        results[i].error = reason_of(error);
      }
    }
  } catch (const std::exception& error) {
    if (requests.size() == 1) {
      results[0].error = reason_of(error);
      return results;
    }
    // One wrong request should not fail the others.
    for (size_t i = 0; i < requests.size(); ++i) {
      results[i] = run(version, program, requests.subspan(i, 1)).front();
    }
  }
  return results;
}

std::vector<ScoreInputInfo> inputs_of(
    const std::shared_ptr<const Program>& program) {
  return program == nullptr ? std::vector<ScoreInputInfo>()
                            : inputs_of(program->signature());
}

}  // namespace

struct ProgramScorer::State {
  explicit State(std::shared_ptr<const Reader> from)
      : reader(std::move(from)),
        programs(
            std::make_shared<const Programs>(reader->version(), Programs())) {}

  std::shared_ptr<const Programs> newest() {
    if (!has_tried(*reader->version())) {
      // While one thread loads, others go on with the previous version.
      const std::unique_lock<std::mutex> lock(loading, std::try_to_lock);
      if (lock) {
        load();
      }
    }
    return current();
  }

  std::shared_ptr<const Programs> current() {
    const std::lock_guard<std::mutex> lock(mutex);
    return programs;
  }

  bool has_tried(const Version& version) {
    const std::lock_guard<std::mutex> lock(mutex);
    return programs->version.get() == &version || refused.get() == &version;
  }

  // Loads the newest version. The caller holds `loading`.
  void load() {
    const std::shared_ptr<const Version> version = reader->version();
    if (has_tried(*version)) {
      return;  // another thread was faster
    }
    const std::shared_ptr<const Programs> before = current();
    std::shared_ptr<const Programs> next;
    try {
      next = std::make_shared<const Programs>(version, *before);
    } catch (const std::exception& error) {
      TORCH_WARN(
          kScorer,
          " goes on with version ",
          before->version->number(),
          ": ",
          reason_of(error));
    }
    const std::lock_guard<std::mutex> lock(mutex);
    programs = next != nullptr ? next : before;
    refused = next != nullptr ? nullptr : version;
  }

  std::shared_ptr<const Reader> reader;
  std::mutex loading;  // held by the thread that loads
  std::mutex mutex;  // guards what follows
  std::shared_ptr<const Programs> programs;
  std::shared_ptr<const Version> refused = {};  // it can't be loaded
};

ProgramScorer::ProgramScorer(std::shared_ptr<const Reader> reader) {
  TESSERA_CHECK_VALUE(
      reader != nullptr,
      "[ProgramScorer] expected a reader, but got nullptr. Make a Reader of the published directory.");
  state_ = std::make_shared<State>(std::move(reader));
}

std::shared_ptr<const Program> ProgramScorer::program() const {
  return state_->newest()->scores;
}

std::vector<ScoreInputInfo> ProgramScorer::inputs() const {
  return inputs_of(state_->current()->scores);
}

std::vector<ScoreInputInfo> ProgramScorer::query_inputs() const {
  return inputs_of(state_->current()->query);
}

std::shared_ptr<const Version> ProgramScorer::version() const {
  return state_->newest()->version;
}

std::vector<ScoreResult> ProgramScorer::operator()(
    std::span<const ScoreRequest> requests) const {
  const std::shared_ptr<const Programs> programs = state_->newest();
  return run(*programs->version, programs->scores.get(), requests);
}

std::vector<ScoreResult> ProgramScorer::query(
    std::span<const ScoreRequest> requests) const {
  const std::shared_ptr<const Programs> programs = state_->newest();
  return run(*programs->version, programs->query.get(), requests);
}

}  // namespace tessera::serving
