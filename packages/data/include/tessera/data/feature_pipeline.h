// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/data/column_type.h>
#include <tessera/data/columns.h>
#include <tessera/data/transforms.h>
#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/tables/table_config.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

class PipelineCore;

/// The result of a pipeline for one batch.
struct PipelineBatch {
  /// A map with one feature for each output whose transform gives ids. A feature is int64
  /// [batch], or a RaggedFeature if a column is ragged or the transform has
  /// Missing::kDrop.
  Features features = {};
  /// The columns of all outputs to numbers, in the order of the outputs.
  at::Tensor dense = {};  // [batch, num_dense] float32
};

// snippet: tests/docs/reference_data_test.cpp FeaturePipeline
/// Converts columns of raw data to the features of a layer, in training and in serving.
///
///   const FeaturePipeline pipeline(
///       {{.name = "counts",
///         .columns = {"I1", "I2"},
///         .transform = transforms::Log1p{}},
///        {.name = "site",
///         .columns = {"C3"},
///         .transform = transforms::Hash{.num_bins = 100'000}}});
///   const PipelineBatch inputs = pipeline.apply(to_columns(batch));
///   // inputs.features: the ids of "site"; inputs.dense: [batch, 2]
///
/// The integer 7 and the text "7" have different hashes, so a column must always have the
/// same type. The pipeline takes the type of a hashed column from the first batch, keeps it
/// in its file, and refuses another one.
///
/// Copies share their contents, and moving makes a copy. Several threads may use one
/// pipeline at the same time.
/// Errors:  c10::ValueError from the constructor naming the output and the field, or the
///          column whose outputs or type do not fit together.
class FeaturePipeline {
 public:
  /// `types` are the types of columns, if they should be known before the first batch:
  ///
  ///   FeaturePipeline(outputs, {{"site", ColumnType::kText}})
  explicit FeaturePipeline(
      std::vector<PipelineOutput> outputs,
      std::map<std::string, ColumnType> types = {});
  // The class has no moves, so that no pipeline is left empty.
  FeaturePipeline(const FeaturePipeline&) = default;
  FeaturePipeline& operator=(const FeaturePipeline&) = default;

  /// Converts one batch. Columns that no output uses are ignored. apply() runs on the
  /// calling thread. To save time, convert the next batch in another thread during a
  /// training step.
  ///
  /// Errors:  c10::ValueError naming every column that is missing, has a kind that its
  ///          transform can't read, or has another type than in types(); c10::ValueError
  ///          for missing values under Missing::kError, and for numbers whose result is
  ///          not finite; c10::IndexError for a value out of range.
  PipelineBatch apply(const Columns& columns) const;
  /// Converts one batch to the outputs whose columns it has, such as those of users.
  /// Numbers of other outputs are 0.
  /// Errors:  as apply(), but for missing columns.
  PipelineBatch apply_present(const Columns& columns) const;

  /// The types of the columns that give ids: the types that the constructor got, those
  /// that the transforms need, and those of the first batch. Pass the result as `types`
  /// to the reader of a server, so that a column of "1", "2" is not read as integers
  /// there. Readers ignore the types of columns that the files do not have. Columns that
  /// only give numbers or intervals may be integers or floats in each batch, and are in
  /// the result only if the constructor got their types.
  ColumnTypes types() const;
  /// The hashed columns whose type is not known yet.
  std::vector<std::string> untyped_columns() const;

  const std::vector<PipelineOutput>& outputs() const&;
  std::vector<PipelineOutput> outputs() &&;
  /// The number of columns of PipelineBatch::dense.
  int64_t num_dense() const;
  /// The number of rows that the feature's table needs.
  /// Errors:  c10::ValueError listing the features if there is no such feature.
  int64_t vocabulary_size(std::string_view feature) const;
  /// The number of the feature's first ids that stand for missing and unknown values.
  /// Errors:  as vocabulary_size().
  int64_t num_reserved_ids(std::string_view feature) const;

  // snippet: tests/docs/reference_data_test.cpp to_text
  /// The values that ids of a feature stand for, as text:
  ///
  ///   // "de", "(unknown)" and "(missing)"
  ///   const std::vector<std::string> names = pipeline.to_text("country", ids);
  ///
  /// Integers are written as decimal numbers, and intervals of Bucketize as "[18, 30)".
  /// Errors:  c10::ValueError for a transform that can't be reversed, such as Hash;
  ///          c10::IndexError for an id that the feature does not have; c10::TypeError for
  ///          ids that are not int64.
  std::vector<std::string> to_text(
      std::string_view feature,
      const at::Tensor& ids) const;

  /// A table for the ids of a feature. If `config` has no keys, vocabulary_size is that of
  /// the feature, and zero_rows is num_reserved_ids(). Missing and unknown values that
  /// training never had then get zeros and not a random vector. If `config` has no name,
  /// the table has that of the feature.
  ///
  ///   pipeline.make_table("site", {.dim = 16})
  ///
  /// Features with the same transform may share the table.
  /// Errors:  as vocabulary_size(), and those of tessera::make_table(). Hash64 and Cross64
  ///          need TableConfig::keys.
  TablePtr make_table(std::string_view feature, TableConfig config) const;

  /// The features of a layer, each with a table of its own from make_table():
  ///
  ///   TPUEmbeddingOptions{.features = pipeline.make_features({.dim = 16})}
  ///
  /// Errors:  as make_table(), and c10::ValueError if `config` has a name or there are no
  ///          features.
  Nest<FeatureConfig> make_features(const TableConfig& config) const;

  /// Compares outputs() and types().
  bool operator==(const FeaturePipeline& other) const;

 private:
  friend FeaturePipeline pipeline_from_json(const Json& json);
  // A pipeline from a file warns if the file lacks a type, so that the first batch
  // decides about it.
  FeaturePipeline(
      std::vector<PipelineOutput> outputs,
      std::map<std::string, ColumnType> types,
      bool is_from_file);
  PipelineBatch apply(const Columns& columns, bool is_partial) const;

  std::shared_ptr<const PipelineCore> core_;
};

/// Checks that the features of the pipeline fit a layer with these feature configs. The
/// configs must be a flat map with the same features, and each table must have the
/// vocabulary_size() of its feature. Warns if rows of missing or unknown values begin at
/// random, because training may never update them.
/// Errors:  c10::ValueError with all differences, the sizes, and what to do.
void validate(
    const FeaturePipeline& pipeline,
    const Nest<FeatureConfig>& features);

/// A pipeline as JSON, with its vocabularies. save_pipeline() writes it to a file.
///
///   {"format_version": 2,
///    "types": {"C3": "text"},
///    "outputs": [{"name": "site", "columns": ["C3"],
///                 "transform": {"class_name": "Hash", "config": {...}},
///                 "max_length": 0}]}
///
/// Vocabulary text that is not UTF-8 is written as {"hex": "ff00"}.
Json to_json(const FeaturePipeline& pipeline);

/// The pipeline that to_json() wrote. Missing options have their defaults. Version 1 of the
/// format has no types. If the type of a hashed column is not in the JSON, the first batch
/// decides about it, with a warning that says which type is assumed.
/// Errors:  c10::ValueError naming the place of an unknown key or a wrong type; errors
///          of the constructor.
FeaturePipeline pipeline_from_json(const Json& json);

}  // namespace tessera::data

namespace tessera {

/// Writes to_json(pipeline) to a file. The file appears whole or not at all: after a
/// crash, `path` has its earlier content.
/// Errors:  c10::ValueError if the type of a hashed column is not known, because the
///          pipeline has not seen a batch and got no type; c10::Error naming the path and
///          the system's reason.
void save_pipeline(
    const data::FeaturePipeline& pipeline,
    const std::string& path);

/// Reads a pipeline that save_pipeline() has written, or that was written by hand.
/// Errors:  c10::Error for a file that can't be read; c10::ValueError for a file that
///          is not JSON in UTF-8, or not a pipeline. All messages name the path.
data::FeaturePipeline load_pipeline(const std::string& path);

}  // namespace tessera
