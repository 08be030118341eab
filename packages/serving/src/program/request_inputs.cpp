// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/program/request_inputs.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/features/id_rule.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

namespace tessera::serving {

namespace {

constexpr const char* kScorerWhere = "[ProgramScorer]";

bool is_of_user(const Pt2Value& value) {
  return value.part == "row_splits" ||
      (!value.shape.empty() && value.shape[0] == 1);
}

// The numbers of a row.
int64_t width_of(const Pt2Value& value) {
  int64_t width = 1;
  for (size_t axis = 1; axis < value.shape.size(); ++axis) {
    width *= value.shape[axis].value_or(1);
  }
  return width;
}

// The ids of an input. One with numbers has none.
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
      "{} '{}' must have {} rows, but has {} rows with {} ids. Correct the request.",
      kScorerWhere,
      shorten(input.name),
      rows,
      input.rows,
      ids);
}

// A lookup of bags drops ids < 0, and a lookup of single ids refuses them. Both may be in
// one batch.
void check_single_ids(const ScoreInput& input, const TableInfo& table) {
  for (const int64_t id : ids_of(input).ids) {
    TESSERA_CHECK_INDEX(
        id >= 0 || table.has_keys || !ids_of(input).row_splits.empty(),
        "{} '{}' must have ids >= 0, but has {}. Correct the request.",
        kScorerWhere,
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

}  // namespace

std::vector<ScoreInputInfo> inputs_of(const Pt2Signature& signature) {
  std::vector<ScoreInputInfo> inputs;
  for (const Pt2Value& value : signature.inputs) {
    // A feature may have two arguments: the activations and the row_splits.
    const bool is_known = std::any_of(
        inputs.begin(), inputs.end(), [&](const ScoreInputInfo& input) {
          return input.name == value.path;
        });
    if (!is_known) {
      inputs.push_back(
          {.name = value.path,
           .is_of_user = is_of_user(value),
           .width = value.part.empty() ? width_of(value) : 0});
    }
  }
  return inputs;
}

RequestInputs::RequestInputs(
    const Program& program,
    std::span<const ScoreRequest> requests)
    : requests_(requests) {
  int64_t first = 0;
  for (const ScoreRequest& request : requests_) {
    first_candidates_.push_back(first);
    first += request.num_candidates;
  }
  check_names(program);
  check_none_is_missing(program);
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

std::vector<at::Tensor> RequestInputs::of(size_t request) const {
  std::vector<at::Tensor> tensors;
  for (const Argument& argument : arguments_) {
    if (!argument.rows.defined()) {
      tensors.push_back(argument.each[request]);
    } else if (argument.is_of_user) {
      tensors.push_back(
          argument.rows.narrow(0, static_cast<int64_t>(request), 1));
    } else {
      tensors.push_back(argument.rows.narrow(
          0, first_candidates_[request], candidates(request)));
    }
  }
  return tensors;
}

const ScoreInput* RequestInputs::find(size_t request, const Pt2Value& value)
    const {
  const std::vector<ScoreInput>& inputs = is_of_user(value)
      ? requests_[request].user
      : requests_[request].candidates;
  const auto found =
      std::find_if(inputs.begin(), inputs.end(), [&](const ScoreInput& input) {
        return input.name == value.path;
      });
  return found == inputs.end() ? nullptr : &*found;
}

std::vector<const ScoreInput*> RequestInputs::find_all(
    const Pt2Value& value) const {
  std::vector<const ScoreInput*> inputs;
  for (size_t i = 0; i < requests_.size(); ++i) {
    inputs.push_back(find(i, value));
    check_rows(*inputs.back(), is_of_user(value) ? 1 : candidates(i));
  }
  return inputs;
}

void RequestInputs::check_none_is_missing(const Program& program) const {
  for (size_t i = 0; i < requests_.size(); ++i) {
    std::vector<std::string> missing;
    for (const Pt2Value& value : program.signature().inputs) {
      const std::string name = fmt::format(
          "'{}' in {}",
          shorten(value.path),
          is_of_user(value) ? "user" : "candidates");
      // A feature may have two inputs: the activations and the row_splits.
      if (find(i, value) == nullptr &&
          std::find(missing.begin(), missing.end(), name) == missing.end()) {
        missing.push_back(name);
      }
    }
    TESSERA_CHECK_VALUE(
        missing.empty(),
        "{} expected {}, but the request does not have it. Add what is missing.",
        kScorerWhere,
        fmt::to_string(fmt::join(missing, ", ")));
  }
}

// Refuses inputs that the model does not have, such as misspelt ones.
void RequestInputs::check_names(const Program& program) const {
  const std::vector<Pt2Value>& known = program.signature().inputs;
  const auto check = [&](const ScoreInput& input, bool of_user) {
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const Pt2Value& value) {
          return value.path == input.name;
        });
    TESSERA_CHECK_VALUE(
        found != known.end(),
        "{} expected an input of the model, but got '{}'. Correct the name, or leave it out. GET /version of the server lists the inputs.",
        kScorerWhere,
        shorten(input.name));
    TESSERA_CHECK_VALUE(
        is_of_user(*found) == of_user,
        "{} expected '{}' in {}, but got it in {}. Move it.",
        kScorerWhere,
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

RequestInputs::Argument RequestInputs::activations(
    const Version& version,
    const Pt2Value& value) const {
  const size_t feature = version.feature(value.path);
  const FeatureInfo& info = version.features()[feature];
  bool has_bags = info.sequence_length > 0;
  const TableInfo& table = version.tables()[version.table(info.table)];
  const std::vector<const ScoreInput*> inputs = find_all(value);
  for (const ScoreInput* input : inputs) {
    check_single_ids(*input, table);
    has_bags = has_bags || !ids_of(*input).row_splits.empty();
  }
  IdLists all;
  for (const ScoreInput* input : inputs) {
    append(*input, has_bags, all);
  }
  Argument argument{.is_of_user = is_of_user(value)};
  std::vector<int64_t> sizes{
      argument.is_of_user
          ? static_cast<int64_t>(requests_.size())
          : first_candidates_.back() + requests_.back().num_candidates};
  if (info.sequence_length > 0) {
    sizes.push_back(info.sequence_length);
  }
  sizes.push_back(info.dim);
  argument.rows = at::empty(sizes, at::kFloat);
  version.lookup(
      feature,
      all.batch(),
      {argument.rows.mutable_data_ptr<float>(),
       static_cast<size_t>(argument.rows.numel())});
  return argument;
}

RequestInputs::Argument RequestInputs::row_splits(const Pt2Value& value) const {
  Argument argument{.is_of_user = true};
  for (const ScoreInput* input : find_all(value)) {
    argument.each.push_back(
        at::tensor({int64_t{0}, std::ssize(ids_of(*input).ids)}, at::kLong)
            .to(value.dtype));
  }
  return argument;
}

RequestInputs::Argument RequestInputs::numbers(const Pt2Value& value) const {
  Argument argument{.is_of_user = is_of_user(value)};
  const int64_t width = width_of(value);
  for (const ScoreInput* input : find_all(value)) {
    const int64_t rows = input->rows;
    const auto* given = std::get_if<std::vector<float>>(&input->values);
    TESSERA_CHECK_VALUE(
        given != nullptr && std::ssize(*given) == rows * width,
        "{} '{}' must have {} numbers for each of {} rows, but has {} in total. Correct the request.",
        kScorerWhere,
        shorten(value.path),
        width,
        rows,
        given == nullptr ? 0 : given->size());
    std::vector<int64_t> sizes{rows};
    for (size_t axis = 1; axis < value.shape.size(); ++axis) {
      sizes.push_back(value.shape[axis].value_or(1));
    }
    argument.each.push_back(
        at::tensor(*given, at::kFloat).view(sizes).to(value.dtype));
  }
  return argument;
}

}  // namespace tessera::serving
