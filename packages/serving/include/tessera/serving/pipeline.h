// SPDX-License-Identifier: Apache-2.0
#pragma once

// This header needs only the standard library, and the library behind it does not need
// LibTorch.

#include <tessera/serving/export.h>
#include <tessera/serving/reader.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::data {
class PipelineCore;
}  // namespace tessera::data

namespace tessera::serving {

/// A missing value in a column of integers. NaN is one in a column of floats, and the empty
/// string is one in a column of text.
inline constexpr int64_t kMissing = std::numeric_limits<int64_t>::min();

/// The values of a column.
using RawValues = std::
    variant<std::vector<int64_t>, std::vector<float>, std::vector<std::string>>;

/// The columns of a batch of examples, with their names.
class TESSERA_SERVING_API RawColumns {
 public:
  /// One column of a batch of examples.
  struct Column {
    /// [batch]. With row_splits, the values of all examples one after the other.
    RawValues values = {};
    /// Unset: each example has one value. Otherwise [batch + 1], ascending from 0, and
    /// example i has the values [row_splits[i], row_splits[i + 1]).
    std::optional<std::vector<int64_t>> row_splits = {};
  };
  using Entry = std::pair<std::string, Column>;

  /// Errors:  std::invalid_argument naming the column if the name was added before, if the
  ///          number of examples differs from that of other columns, or for wrong
  ///          row_splits.
  void add(std::string name, Column column);

  /// The column of a name, or nullptr.
  const Column* find(std::string_view name) const&;
  /// The number of examples. 0 if there are no columns.
  int64_t batch_size() const;
  const std::vector<Entry>& entries() const& {
    return entries_;
  }
  std::vector<Entry> entries() && {
    return std::move(entries_);
  }

 private:
  std::vector<Entry> entries_;
};

/// A column that a pipeline reads.
struct PipelineColumn {
  /// The values that the pipeline takes for the column.
  enum class Type {
    kInt64,
    kFloat32,
    kText,
    /// An integer from 0 to 2^64 - 1, passed as the int64 with the same bits.
    kUInt64Bits,
    /// Integers or floats. Each batch may have either.
    kNumbers,
    /// Integers or text. The pipeline does not know which of them training had, so the first
    /// batch decides. Only pipelines that save_pipeline() did not write have such columns.
    kUnknown
  };

  std::string name = {};
  Type type = Type::kUnknown;
  /// True if the column may have row_splits.
  bool takes_lists = false;

  bool operator==(const PipelineColumn&) const = default;
};

/// The result of a pipeline for one batch.
struct PipelineResult {
  /// The features by name.
  std::map<std::string, IdLists, std::less<>> features = {};
  std::vector<float> dense = {};  // [batch, num_dense], row by row
  int64_t batch_size = 0;
  int64_t num_dense = 0;
  /// Says which type the pipeline has assumed for a column of type kUnknown. Usually empty.
  std::string warning = {};
};

// snippet: packages/serving/tests/pipeline_test.cpp serving_pipeline
/// The feature pipeline of a training, as save_pipeline() has written it. It runs the code
/// of data::FeaturePipeline, so it gives the same ids and the same numbers, bit by bit.
///
///   const auto pipeline = Pipeline::load(path);
///   RawColumns batch;
///   batch.add("country", {.values = std::vector<std::string>{"fr", "it"}});
///   batch.add("age", {.values = std::vector<float>{45.0F, 30.0F}});
///   const PipelineResult inputs = pipeline.apply(batch);
///   const IdLists& country = inputs.features.at("country");
///   // country.ids: 3 and 1, which is the id of unknown values; inputs.dense: 0.5 and -1
///   for (const PipelineColumn& column : pipeline.columns()) {
///     std::puts(column.name.c_str());  // country, age
///   }
///
/// Copies share their contents, and moving makes a copy. Several threads may use one
/// pipeline at the same time.
class TESSERA_SERVING_API Pipeline {
 public:
  /// Reads a file of save_pipeline().
  /// Errors:  std::runtime_error for a file that can't be read; std::invalid_argument for
  ///          a file that is not JSON in UTF-8, or not a pipeline. All messages name the
  ///          path.
  static Pipeline load(const std::string& path);
  /// Makes a pipeline from the text of a file of save_pipeline().
  /// Errors:  std::invalid_argument, as for load().
  static Pipeline from_json_text(std::string_view text);

  // The class has no moves, so that no pipeline is left empty.
  Pipeline(const Pipeline&) = default;
  Pipeline& operator=(const Pipeline&) = default;
  ~Pipeline() = default;

  /// Converts one batch on the calling thread. Columns that no output uses are ignored.
  /// Shapes:  dense [batch, num_dense]; the ids of a feature [batch], or [nnz] with
  ///          row_splits [batch + 1] if a column has row_splits or missing values are
  ///          dropped.
  /// Errors:  std::invalid_argument naming all columns that are missing or have values that
  ///          their transform does not take; std::invalid_argument for missing values that a
  ///          transform refuses, and for results that are not finite; std::out_of_range for
  ///          an id that is out of range, and for an unknown value without an id.
  PipelineResult apply(const RawColumns& columns) const;

  /// The same for the outputs whose columns are all in the batch, such as those of a user
  /// alone. The result lacks the other features, and the numbers of other outputs are 0.
  PipelineResult apply_present(const RawColumns& columns) const;

  /// The columns that apply() needs, in the order in which the outputs name them.
  std::vector<PipelineColumn> columns() const;
  /// The names of the features, in the order of the outputs.
  std::vector<std::string> feature_names() const;
  /// The number of columns of PipelineResult::dense.
  int64_t num_dense() const;

 private:
  friend struct PublishedPipeline;  // of the server
  struct State;
  explicit Pipeline(std::shared_ptr<const State> state);
  const data::PipelineCore& core() const&;

  std::shared_ptr<const State> state_;
};

}  // namespace tessera::serving
