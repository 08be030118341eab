// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/feature_pipeline.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "packages/data/src/column_view.h"
#include "packages/data/src/pipeline_core.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <deque>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace tessera::data {

namespace {

// The ids of a feature as tensors. `column_splits` are the row splits of its first column.
class TensorIds final : public IdsMemory {
 public:
  explicit TensorIds(at::Tensor column_splits)
      : column_splits_(std::move(column_splits)) {}

  std::span<int64_t> make_ids(size_t size) override {
    return make(ids_, size);
  }
  void shrink_ids(size_t size) override {
    ids_ = ids_.narrow(0, 0, static_cast<int64_t>(size));
  }
  std::span<int64_t> make_row_splits(size_t size) override {
    return make(row_splits_, size);
  }
  void take_row_splits(std::span<const int64_t> /*row_splits*/) override {
    row_splits_ = column_splits_;
  }

  Feature feature() const {
    if (!row_splits_.defined()) {
      return ids_;
    }
    return RaggedFeature{.values = ids_, .row_splits = row_splits_};
  }

 private:
  static std::span<int64_t> make(at::Tensor& tensor, size_t size) {
    tensor = at::empty({static_cast<int64_t>(size)}, at::kLong);
    return {tensor.data_ptr<int64_t>(), size};
  }

  at::Tensor column_splits_;
  at::Tensor ids_;
  at::Tensor row_splits_;
};

// The result of a pipeline as tensors.
class TensorMemory final : public PipelineMemory {
 public:
  TensorMemory(const Columns& columns, int64_t num_dense, bool is_partial)
      : columns_(columns), num_dense_(num_dense), is_partial_(is_partial) {}

  float* make_dense() override {
    const std::vector<int64_t> shape{columns_.batch_size(), num_dense_};
    dense_ = is_partial_ ? at::zeros(shape, at::kFloat)
                         : at::empty(shape, at::kFloat);
    return dense_.data_ptr<float>();
  }
  IdsMemory& make_feature(const PipelineOutput& output) override {
    const Column& column = columns_.at(output.columns.front());
    return features_.emplace_back(output.name, column.row_splits).second;
  }

  PipelineBatch batch() const {
    Features::Map features;
    for (const auto& [name, ids] : features_) {
      features.emplace_back(name, ids.feature());
    }
    return {.features = Features::map(std::move(features)), .dense = dense_};
  }

 private:
  const Columns& columns_;
  int64_t num_dense_;
  bool is_partial_;  // numbers of outputs that are left out are not written
  at::Tensor dense_;
  // A deque, because TensorIds can't be moved.
  std::deque<std::pair<std::string, TensorIds>> features_;
};

}  // namespace

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
    : core_(std::make_shared<const PipelineCore>(
          std::move(outputs),
          std::move(types),
          is_from_file)) {}

PipelineBatch FeaturePipeline::apply(const Columns& columns) const {
  return apply(columns, /*is_partial=*/false);
}

PipelineBatch FeaturePipeline::apply_present(const Columns& columns) const {
  return apply(columns, /*is_partial=*/true);
}

PipelineBatch FeaturePipeline::apply(const Columns& columns, bool is_partial)
    const {
  const ProfileScope scope("tessera::FeaturePipeline");
  std::vector<at::Tensor> kept;
  PipelineInputs inputs = core_->make_inputs(
      columns.entries(),
      [&](const Column& column) { return view_of(column, kept); });
  inputs.is_partial = is_partial;
  TensorMemory memory(columns, num_dense(), is_partial);
  const std::string warning = core_->apply(inputs, memory);
  if (!warning.empty()) {
    TORCH_WARN(warning);
  }
  return memory.batch();
}

const std::vector<PipelineOutput>& FeaturePipeline::outputs() const& {
  return core_->outputs();
}

std::vector<PipelineOutput> FeaturePipeline::outputs() && {
  return core_->outputs();  // copies of the pipeline share them
}

ColumnTypes FeaturePipeline::types() const {
  ColumnTypes types = core_->types();
  types.may_name_other_columns = true;
  return types;
}

std::vector<std::string> FeaturePipeline::untyped_columns() const {
  return core_->untyped_columns();
}

int64_t FeaturePipeline::num_dense() const {
  return core_->num_dense();
}

int64_t FeaturePipeline::vocabulary_size(std::string_view feature) const {
  return data::vocabulary_size(core_->transform_of(feature));
}

int64_t FeaturePipeline::num_reserved_ids(std::string_view feature) const {
  return data::num_reserved_ids(core_->transform_of(feature));
}

std::vector<std::string> FeaturePipeline::to_text(
    std::string_view feature,
    const at::Tensor& ids) const {
  const Transform& transform = core_->transform_of(feature);
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
  for (const PipelineOutput& output : core_->outputs()) {
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
  return core_ == other.core_ ||
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
      return fmt::format("\n  '{}': ", shorten(output.name));
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
      problems += fmt::format(
          "{}{} gives keys of 64 bits, but its table '{}' has a vocabulary. Set TableConfig::keys, or change the transform.",
          location(),
          name_of(output.transform),
          shorten(table.name));
      continue;
    }
    if (table.vocabulary_size != needed) {
      problems += fmt::format(
          "{0}{1} gives ids in [0, {2}), but its table '{3}' has vocabulary_size {4}. Set vocabulary_size to {2}, or change the transform.",
          location(),
          name_of(output.transform),
          needed,
          shorten(table.name),
          table.vocabulary_size);
    }
    if (is_random(table.initializer) &&
        table.zero_rows < num_reserved_ids(output.transform)) {
      untrained +=
          (untrained.empty() ? "'" : ", '") + shorten(output.name) + "'";
    }
  }
  for (const auto& [name, entry] : features.entries()) {
    if (!given.contains(name)) {
      problems += fmt::format(
          "\n  '{}': the layer has it, but the pipeline gives no such feature. Add an output for it.",
          shorten(name));
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

Json to_json(const FeaturePipeline& pipeline) {
  return write_pipeline(pipeline.outputs(), pipeline.types());
}

FeaturePipeline pipeline_from_json(const Json& json) {
  PipelineDefinition definition = read_pipeline(json);
  return {
      std::move(definition.outputs),
      std::move(definition.types),
      /*is_from_file=*/true};
}

}  // namespace tessera::data

namespace tessera {

void save_pipeline(
    const data::FeaturePipeline& pipeline,
    const std::string& path) {
  const std::vector<std::string> untyped = pipeline.untyped_columns();
  TESSERA_CHECK_VALUE(
      untyped.empty(),
      "[save_pipeline] {}: integers and text have different hashes, and it is not known which of them these columns have: {}. Save the pipeline after it has converted a batch, or give their types to its constructor.",
      path,
      shorten_all(untyped));
  const std::string text = to_json(pipeline).dump() + "\n";
  TESSERA_CHECK_VALUE(
      text.size() <= data::kPipelineLimits.bytes,
      "[save_pipeline] {}: the pipeline must take at most {} bytes, but takes {}. Use smaller vocabularies.",
      path,
      data::kPipelineLimits.bytes,
      text.size());
  AtomicFile file(path, "[save_pipeline]");
  file.write(text.data(), text.size());
  file.commit();
}

data::FeaturePipeline load_pipeline(const std::string& path) {
  return data::read_pipeline_file(path, data::pipeline_from_json);
}

}  // namespace tessera
