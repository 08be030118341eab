// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/feature_pipeline.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/data/column_values.h"
#include "src/data/prepared_transform.h"
#include "src/data/utf8.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <set>

namespace tessera::data {

namespace {

std::string where_of(const PipelineOutput& output) {
  return c10::str("[FeaturePipeline '", shorten(output.name), "']");
}

std::vector<std::string> names_of(const Columns& columns) {
  std::vector<std::string> names;
  for (const auto& [name, column] : columns.entries()) {
    names.push_back(name);
  }
  return names;
}

std::string list(const std::vector<std::string>& names) {
  return names.empty() ? "(none)" : shorten_all(names);
}

void check_output(const PipelineOutput& output, size_t index) {
  TESSERA_CHECK_VALUE(
      !output.name.empty() && is_utf8(output.name),
      "[FeaturePipeline] the name of outputs[{}] must be UTF-8 text, but is {}. Give the output a name.",
      index,
      output.name.empty() ? "empty" : "not UTF-8");
  const std::string where = where_of(output);
  const bool is_cross =
      std::holds_alternative<transforms::Cross>(output.transform) ||
      std::holds_alternative<transforms::Cross64>(output.transform);
  const bool is_group = gives_numbers(output.transform);
  const size_t min_columns = is_cross ? 2 : 1;
  TESSERA_CHECK_VALUE(
      output.columns.size() >= min_columns &&
          (is_cross || is_group || output.columns.size() == min_columns),
      "{} {} takes {}, but got {}. Correct the columns of the output.",
      where,
      name_of(output.transform),
      is_cross       ? "two columns or more"
          : is_group ? "one column or more"
                     : "one column",
      output.columns.size());
  TESSERA_CHECK_VALUE(
      std::all_of(output.columns.begin(), output.columns.end(), is_utf8),
      "{} the names of columns must be UTF-8, but one is not. Rename the column.",
      where);
  TESSERA_CHECK_VALUE(
      output.max_length >= 0 && (output.max_length == 0 || !is_group),
      "{} max_length must be >= 0, and 0 for transforms that give numbers, but got {}. Correct it.",
      where,
      output.max_length);
}

}  // namespace

struct FeaturePipeline::State {
  // An output and its transform. If it gives numbers, `first_dense` is its first column
  // in the dense matrix.
  struct Step {
    Step(const PipelineOutput& of, int64_t first)
        : output(&of),
          transform(
              of.transform,
              c10::str(where_of(of), " ", name_of(of.transform))),
          readable(readable_columns(of.transform)),
          first_dense(first) {}

    const PipelineOutput* output;
    PreparedTransform transform;
    ReadableColumns readable;
    int64_t first_dense;
  };

  explicit State(std::vector<PipelineOutput> given)
      : outputs(std::move(given)) {
    std::set<std::string_view> names;
    for (size_t i = 0; i < outputs.size(); ++i) {
      check_output(outputs[i], i);
      TESSERA_CHECK_VALUE(
          names.insert(outputs[i].name).second,
          "{} two outputs have this name. Rename one of them.",
          where_of(outputs[i]));
    }
    for (const PipelineOutput& output : outputs) {
      steps.emplace_back(output, num_dense);
      if (gives_numbers(output.transform)) {
        num_dense += static_cast<int64_t>(output.columns.size());
      }
    }
  }

  // The columns of each step. The error names all columns that don't fit.
  std::vector<std::vector<const Column*>> find_columns(
      const Columns& columns) const {
    std::vector<std::vector<const Column*>> found;
    std::string problems;
    for (const Step& step : steps) {
      std::vector<const Column*>& own = found.emplace_back();
      for (const std::string& name : step.output->columns) {
        const auto location = [&] {
          return c10::str(
              "\n  '",
              shorten(step.output->name),
              "': column '",
              shorten(name),
              "' ");
        };
        if (!columns.contains(name)) {
          problems += location() + "is missing.";
          continue;
        }
        own.push_back(&columns.at(name));
        if (!step.readable.has(*own.back())) {
          problems += c10::str(
              location(),
              "has ",
              own.back()->row_splits.defined() ? "lists of " : "",
              kind_of(*own.back()),
              ", but ",
              name_of(step.output->transform),
              " takes ",
              step.readable.describe(),
              ".");
        }
      }
    }
    TESSERA_CHECK_VALUE(
        problems.empty(),
        "[FeaturePipeline] the batch does not fit the pipeline:{}\nColumns of the batch: {}.",
        problems,
        list(names_of(columns)));
    return found;
  }

  std::vector<PipelineOutput> outputs;
  std::deque<Step> steps;  // a deque, because steps can't be moved
  int64_t num_dense = 0;
};

FeaturePipeline::FeaturePipeline(std::vector<PipelineOutput> outputs)
    : state_(std::make_shared<const State>(std::move(outputs))) {}

PipelineBatch FeaturePipeline::apply(const Columns& columns) const {
  const ProfileScope scope("tessera::FeaturePipeline");
  const auto inputs = state_->find_columns(columns);
  const int64_t stride = num_dense();
  const at::Tensor dense =
      at::empty({columns.batch_size(), stride}, at::kFloat);
  auto* numbers = dense.data_ptr<float>();
  Features::Map features;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const State::Step& step = state_->steps[i];
    if (!gives_numbers(step.output->transform)) {
      features.emplace_back(
          step.output->name,
          step.transform.to_ids(inputs[i], step.output->max_length));
      continue;
    }
    float* out = numbers + step.first_dense;
    for (const Column* column : inputs[i]) {
      step.transform.to_numbers(*column, out++, stride);
    }
  }
  return {.features = Features::map(std::move(features)), .dense = dense};
}

const std::vector<PipelineOutput>& FeaturePipeline::outputs() const& {
  return state_->outputs;
}

std::vector<PipelineOutput> FeaturePipeline::outputs() && {
  return state_->outputs;  // copies of the pipeline share them
}

int64_t FeaturePipeline::num_dense() const {
  return state_->num_dense;
}

int64_t FeaturePipeline::vocabulary_size(std::string_view feature) const {
  std::vector<std::string> known;
  for (const PipelineOutput& output : outputs()) {
    if (gives_numbers(output.transform)) {
      continue;
    }
    if (output.name == feature) {
      return data::vocabulary_size(output.transform);
    }
    known.push_back(output.name);
  }
  C10_THROW_ERROR(
      ValueError,
      c10::str(
          "[FeaturePipeline] there is no feature '",
          shorten(feature),
          "'. Known: ",
          list(known),
          "."));
}

bool FeaturePipeline::operator==(const FeaturePipeline& other) const {
  return state_ == other.state_ || outputs() == other.outputs();
}

void validate(
    const FeaturePipeline& pipeline,
    const Nest<FeatureConfig>& features) {
  TESSERA_CHECK_VALUE(
      features.is_map(),
      "[FeaturePipeline] the features of the layer must be a flat map like those of a pipeline, but are {}. Give the layer a map of features.",
      features.kind());
  std::string problems;
  std::set<std::string_view> given;
  for (const PipelineOutput& output : pipeline.outputs()) {
    if (gives_numbers(output.transform)) {
      continue;
    }
    given.insert(output.name);
    const auto location = [&] {
      return c10::str("\n  '", shorten(output.name), "': ");
    };
    if (!features.contains(output.name)) {
      problems += location() +
          "the pipeline gives it, but the layer has no such feature. Add it "
          "to the layer, or remove the output.";
      continue;
    }
    const Nest<FeatureConfig>& entry = features.at(output.name);
    if (!entry.is_leaf() || entry.leaf().table == nullptr) {
      problems += location() + "the layer must have a table for it, but has " +
          (entry.is_leaf() ? "none" : entry.kind()) + ". Set its table.";
      continue;
    }
    const TableConfig& table = *entry.leaf().table;
    const int64_t needed = vocabulary_size(output.transform);
    if (table.keys) {
      continue;  // any id is a key
    }
    if (needed == 0) {
      problems += c10::str(
          location(),
          name_of(output.transform),
          " gives keys of 64 bits, but its table '",
          shorten(table.name),
          "' has a vocabulary. Set TableConfig::keys, or change the transform.");
      continue;
    }
    if (table.vocabulary_size != needed) {
      problems += c10::str(
          location(),
          name_of(output.transform),
          " gives ids in [0, ",
          needed,
          "), but its table '",
          shorten(table.name),
          "' has vocabulary_size ",
          table.vocabulary_size,
          ". Set vocabulary_size to ",
          needed,
          ", or change the transform.");
    }
  }
  for (const auto& [name, entry] : features.entries()) {
    if (!given.contains(name)) {
      problems += c10::str(
          "\n  '",
          shorten(name),
          "': the layer has it, but the pipeline gives no such feature. Add an "
          "output for it.");
    }
  }
  TESSERA_CHECK_VALUE(
      problems.empty(),
      "[FeaturePipeline] the pipeline does not fit the layer:{}",
      problems);
}

}  // namespace tessera::data
