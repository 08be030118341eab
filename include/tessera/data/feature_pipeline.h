// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/data/columns.h>
#include <tessera/data/transforms.h>
#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tessera::data {

/// One feature, or a group of numbers, and the columns that it is made of.
struct PipelineOutput {
  /// Unique in a pipeline: the feature's key. Valid UTF-8, as are column names.
  std::string name = {};
  /// One for a transform to ids, two or more for Cross, and one or more for a
  /// transform to numbers, each of which gives a column of its own.
  std::vector<std::string> columns = {};
  Transform transform = {};
  /// > 0: of an example's ids, the first so many. 0: all.
  int64_t max_length = 0;

  bool operator==(const PipelineOutput&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("name", self.name);
    visit("columns", self.columns);
    visit("transform", self.transform);
    visit("max_length", self.max_length);
  }
};
static_assert(std::is_aggregate_v<PipelineOutput>);

/// What a pipeline makes of a batch.
struct PipelineBatch {
  /// A map of one feature per output to ids: ids int64 [batch], or a
  /// RaggedFeature where a column is ragged or Missing::kDrop.
  Features features = {};
  /// The outputs to numbers, column by column in order.
  at::Tensor dense = {};  // [batch, num_dense] float32
};

/// From columns of raw data to the features of a layer, the same way in training
/// and in serving.
///
///   FeaturePipeline pipeline({
///       {.name = "numbers", .columns = {"I1", "I2"},
///        .transform = transforms::Log1p{}},
///       {.name = "site", .columns = {"C3"},
///        .transform = transforms::Hash{.num_bins = 100'000}}});
///   auto [features, dense] = pipeline.apply(to_columns(batch));
///
/// Copies share their contents, and a move makes a copy. Several threads may use one
/// pipeline at the same time.
/// Errors:  c10::ValueError from the constructor naming the output and the field.
class FeaturePipeline {
 public:
  explicit FeaturePipeline(std::vector<PipelineOutput> outputs);
  // The class has no moves, so that no pipeline is left empty.
  FeaturePipeline(const FeaturePipeline&) = default;
  FeaturePipeline& operator=(const FeaturePipeline&) = default;

  /// Columns that no output names may be there, too. Runs on the calling thread:
  /// overlap whole batches with the training step instead.
  ///
  /// Errors:  c10::ValueError naming every column that is missing or of a kind
  ///          that its transform can't read, for missing values under
  ///          Missing::kError, and for numbers whose result is not finite;
  ///          c10::IndexError for a value out of range.
  PipelineBatch apply(const Columns& columns) const;

  const std::vector<PipelineOutput>& outputs() const;
  /// Columns of PipelineBatch::dense.
  int64_t num_dense() const;
  /// Rows that the feature's table needs.
  /// Errors:  c10::ValueError listing the features when it is none.
  int64_t vocabulary_size(std::string_view feature) const;

  bool operator==(const FeaturePipeline& other) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// That a layer with these feature configs takes what the pipeline gives: a flat
/// map with the same features, each with a table of the pipeline's
/// vocabulary_size.
/// Errors:  c10::ValueError with all that differ, the sizes, and what to do.
void validate(
    const FeaturePipeline& pipeline,
    const Nest<FeatureConfig>& features);

/// A pipeline as JSON, with its vocabularies; save_pipeline() writes a file of it.
///
///   {"format_version": 1,
///    "outputs": [{"name": "site", "columns": ["C3"],
///                 "transform": {"class_name": "Hash", "config": {...}},
///                 "max_length": 0}]}
///
/// Vocabulary text that is no UTF-8 is written as {"hex": "ff00"}.
Json to_json(const FeaturePipeline& pipeline);

/// The pipeline that to_json() wrote; a missing option means the default.
/// Errors:  c10::ValueError naming the place of an unknown key, a wrong type, or
///          what the constructor refuses.
FeaturePipeline pipeline_from_json(const Json& json);

}  // namespace tessera::data
