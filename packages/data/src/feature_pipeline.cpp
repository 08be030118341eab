// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/feature_pipeline.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "packages/data/src/prepared_transform.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"
#include "src/common/utf8.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
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

// The kinds of values that all outputs of a column read.
struct ColumnUse {
  std::string outputs;  // for messages
  bool integers = true;
  bool floats = true;
  bool text = true;
};

// Returns the word for a type in messages, like data::kind_of() for a column.
const char* kind_of(ColumnType type) {
  return type == ColumnType::kText   ? "text"
      : type == ColumnType::kFloat32 ? "floats"
                                     : "integers";
}

ColumnType type_of(const Column& column) {
  const auto* tensor = std::get_if<at::Tensor>(&column.values);
  return tensor == nullptr                 ? ColumnType::kText
      : tensor->scalar_type() == at::kLong ? ColumnType::kInt64
                                           : ColumnType::kFloat32;
}

bool is_same_kind(ColumnType type, const Column& column) {
  return std::string_view(kind_of(type)) == data::kind_of(column);
}

std::string kind_problem(ColumnType expected, const Column& column) {
  return c10::str(
      "has ",
      data::kind_of(column),
      ", but this pipeline takes ",
      kind_of(expected),
      " for it, and the ids of the same values would differ. Read the column as ",
      kind_of(expected),
      ", for example with `types = pipeline.types()` of the reader.");
}

bool has_values(const Column& column) {
  bool has_any = false;
  visit_values(column, [&](auto values) { has_any = !values.empty(); });
  return has_any;
}

}  // namespace

struct FeaturePipeline::State {
  // An output and its transform. If the transform gives numbers, `first_dense` is the
  // first column of the output in the dense matrix.
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

  State(
      std::vector<PipelineOutput> given,
      std::map<std::string, ColumnType> given_types,
      bool from_file)
      : outputs(std::move(given)),
        is_from_file(from_file),
        types(std::move(given_types)) {
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
    check_types();
  }

  // Checks that all outputs of a column can read a common type. Sets the type of a
  // column that can only have text, or only integers. Columns that can have either are
  // added to `hashed`.
  void check_types() {
    std::map<std::string, ColumnUse> uses;
    for (const Step& step : steps) {
      for (const std::string& name : step.output->columns) {
        ColumnUse& use = uses[name];
        use.outputs += c10::str(
            use.outputs.empty() ? "'" : ", '",
            shorten(step.output->name),
            "' takes ",
            step.readable.describe());
        use.integers = use.integers && step.readable.integers;
        use.floats = use.floats && step.readable.floats;
        use.text = use.text && step.readable.text;
      }
    }
    for (const auto& [name, type] : types) {
      const auto use = uses.find(name);
      TESSERA_CHECK_VALUE(
          use != uses.end(),
          "[FeaturePipeline] `types` has the column '{}', which no output reads. Correct its name, or leave it out.",
          shorten(name));
      const bool is_read = type == ColumnType::kText ? use->second.text
          : type == ColumnType::kFloat32             ? use->second.floats
                                                     : use->second.integers;
      TESSERA_CHECK_VALUE(
          is_read,
          "[FeaturePipeline] column '{}' can't have {}: {}. Correct its type in `types`.",
          shorten(name),
          kind_of(type),
          use->second.outputs);
    }
    for (const auto& [name, use] : uses) {
      TESSERA_CHECK_VALUE(
          use.integers || use.floats || use.text,
          "[FeaturePipeline] no column '{}' fits all its outputs: {}. Give the outputs different columns.",
          shorten(name),
          use.outputs);
      if (use.floats) {
        continue;
      }
      if (use.integers && use.text) {
        hashed.insert(name);
      } else {
        types.emplace(name, use.text ? ColumnType::kText : ColumnType::kInt64);
      }
    }
  }

  // Remembers the types of the hashed columns after the first batch was converted. Checks
  // them again, because two threads may convert first batches of different types.
  void remember_types(const Columns& columns) const {
    std::string assumed;
    const std::lock_guard<std::mutex> lock(mutex);
    for (const std::string& name : hashed) {
      const Column& column = columns.at(name);
      if (!has_values(column)) {
        continue;
      }
      const auto [entry, is_new] = types.emplace(name, type_of(column));
      TESSERA_CHECK_VALUE(
          is_same_kind(entry->second, column),
          "[FeaturePipeline] column '{}' {}",
          shorten(name),
          kind_problem(entry->second, column));
      if (is_new) {
        assumed += c10::str(
            assumed.empty() ? "'" : ", '",
            shorten(name),
            "' as ",
            kind_of(entry->second));
      }
    }
    if (is_from_file && !assumed.empty()) {
      TORCH_WARN(
          "[FeaturePipeline] the file does not say whether hashed columns had "
          "integers or text in training. The pipeline assumes the types of this "
          "batch: ",
          assumed,
          ". If training had others, all ids differ: read the columns as they were "
          "then. To keep the types, save the pipeline again.");
    }
  }

  // Returns the problem of a column whose type differs from the known one.
  std::string type_problem(const std::string& name, const Column& column)
      const {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto known = types.find(name);
    return known == types.end() || !has_values(column) ||
            is_same_kind(known->second, column)
        ? ""
        : kind_problem(known->second, column);
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
        } else if (const std::string problem = type_problem(name, *own.back());
                   !problem.empty()) {
          problems += location() + problem;
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
  // The columns whose hashes depend on whether they have integers or text.
  std::set<std::string> hashed;
  bool is_from_file = false;
  mutable std::mutex mutex;  // for types
  mutable std::map<std::string, ColumnType> types;
};

FeaturePipeline::FeaturePipeline(
    std::vector<PipelineOutput> outputs,
    std::map<std::string, ColumnType> types)
    : FeaturePipeline(
          std::move(outputs),
          std::move(types),
          /*is_from_file=*/false) {}

FeaturePipeline::FeaturePipeline(
    std::vector<PipelineOutput> outputs,
    std::map<std::string, ColumnType> types,
    bool is_from_file)
    : state_(std::make_shared<const State>(
          std::move(outputs),
          std::move(types),
          is_from_file)) {}

// Runs on one thread. With two threads that shared the features, 8192 Criteo examples took
// 20 to 30 ms on two cores. With one thread, they took 14 ms.
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
  state_->remember_types(columns);
  return {.features = Features::map(std::move(features)), .dense = dense};
}

const std::vector<PipelineOutput>& FeaturePipeline::outputs() const& {
  return state_->outputs;
}

std::vector<PipelineOutput> FeaturePipeline::outputs() && {
  return state_->outputs;  // copies of the pipeline share them
}

std::map<std::string, ColumnType> FeaturePipeline::types() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->types;
}

std::vector<std::string> FeaturePipeline::untyped_columns() const {
  const std::map<std::string, ColumnType> known = types();
  std::vector<std::string> names;
  for (const std::string& name : state_->hashed) {
    if (!known.contains(name)) {
      names.push_back(name);
    }
  }
  return names;
}

int64_t FeaturePipeline::num_dense() const {
  return state_->num_dense;
}

const Transform& FeaturePipeline::transform_of(std::string_view feature) const {
  std::vector<std::string> known;
  for (const PipelineOutput& output : outputs()) {
    if (gives_numbers(output.transform)) {
      continue;
    }
    if (output.name == feature) {
      return output.transform;
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

int64_t FeaturePipeline::vocabulary_size(std::string_view feature) const {
  return data::vocabulary_size(transform_of(feature));
}

int64_t FeaturePipeline::num_reserved_ids(std::string_view feature) const {
  return data::num_reserved_ids(transform_of(feature));
}

std::vector<std::string> FeaturePipeline::to_text(
    std::string_view feature,
    const at::Tensor& ids) const {
  const Transform& transform = transform_of(feature);
  const std::string where =
      c10::str("[FeaturePipeline '", shorten(feature), "'] to_text():");
  TESSERA_CHECK_TYPE(
      ids.defined() && ids.scalar_type() == at::kLong &&
          ids.layout() == at::kStrided && ids.device().is_cpu(),
      "{} expected a dense int64 tensor on the CPU, but got {}. Convert the ids.",
      where,
      describe(ids));
  const at::Tensor flat = ids.contiguous();
  return texts_of_ids(
      transform,
      {flat.const_data_ptr<int64_t>(), static_cast<size_t>(flat.numel())},
      where);
}

TablePtr FeaturePipeline::make_table(
    std::string_view feature,
    TableConfig config) const {
  if (config.name.empty()) {
    config.name = feature;
  }
  if (!config.keys) {
    config.vocabulary_size = vocabulary_size(feature);
    config.zero_rows = num_reserved_ids(feature);
  }
  return tessera::make_table(std::move(config));
}

Nest<FeatureConfig> FeaturePipeline::make_features(
    const TableConfig& config) const {
  TESSERA_CHECK_VALUE(
      config.name.empty(),
      "[FeaturePipeline] expected a config without a name, because each table is named after its feature, but got the name '{}'. Leave it out, or call make_table() for each feature.",
      shorten(config.name));
  Nest<FeatureConfig>::Map features;
  for (const PipelineOutput& output : state_->outputs) {
    if (!gives_numbers(output.transform)) {
      features.emplace_back(
          output.name, FeatureConfig{.table = make_table(output.name, config)});
    }
  }
  TESSERA_CHECK_VALUE(
      !features.empty(),
      "[FeaturePipeline] expected outputs to ids, but all of them are numbers. Add an output with a transform such as Hash, or pass PipelineBatch::dense to layers without tables.");
  return Nest<FeatureConfig>::map(std::move(features));
}

bool FeaturePipeline::operator==(const FeaturePipeline& other) const {
  return state_ == other.state_ ||
      (outputs() == other.outputs() && types() == other.types());
}

namespace {

bool is_random(const std::optional<Initializer>& initializer) {
  return !initializer ||
      std::holds_alternative<initializers::Uniform>(*initializer) ||
      std::holds_alternative<initializers::Normal>(*initializer) ||
      std::holds_alternative<initializers::TruncatedNormal>(*initializer);
}

}  // namespace

void validate(
    const FeaturePipeline& pipeline,
    const Nest<FeatureConfig>& features) {
  TESSERA_CHECK_VALUE(
      features.is_map(),
      "[FeaturePipeline] the features of the layer must be a flat map like those of a pipeline, but are {}. Give the layer a map of features.",
      features.kind());
  std::string problems;
  std::string untrained;
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
    if (is_random(table.initializer) &&
        table.zero_rows < num_reserved_ids(output.transform)) {
      untrained +=
          (untrained.empty() ? "'" : ", '") + shorten(output.name) + "'";
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
  if (!untrained.empty()) {
    TORCH_WARN(
        "[FeaturePipeline] the rows of missing and unknown values begin at random: ",
        untrained,
        ". If training has no such values, a new value gets a random vector in "
        "serving. Make the tables with pipeline.make_table(), or set their zero_rows.");
  }
}

}  // namespace tessera::data
