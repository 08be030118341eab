// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_text.h>
#include <tessera/data/column_type.h>
#include <tessera/data/transforms.h>
#include <tessera/serialization/json_file.h>

#include "packages/data/src/column_view.h"
#include "packages/data/src/prepared_transform.h"
#include "src/common/check.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// A column, and the kinds of values that all its outputs can read.
struct ColumnUse {
  std::string name = {};
  std::string outputs = {};  // for messages
  ReadableColumns readable = {true, true, true, true};
};

/// The columns of a batch as a PipelineCore reads them.
struct PipelineInputs {
  /// A view for each column of PipelineCore::columns(), or nullopt if the batch lacks the
  /// column.
  std::vector<std::optional<ColumnView>> columns;
  /// The names of all columns of the batch, for messages.
  std::vector<std::string_view> names;
  /// Leaves out the outputs of which the batch lacks a column. Their numbers stay as they
  /// are.
  bool is_partial = false;
};

/// Gives the memory for the results of a pipeline.
class PipelineMemory {
 public:
  PipelineMemory() = default;
  virtual ~PipelineMemory() = default;
  PipelineMemory(const PipelineMemory&) = delete;
  PipelineMemory& operator=(const PipelineMemory&) = delete;

  /// Gives memory for [batch, num_dense] numbers. This is called once.
  virtual float* make_dense() = 0;
  /// Gives memory for the ids of an output, which is used until the next call.
  virtual IdsMemory& make_feature(const PipelineOutput& output) = 0;
};

/// All rules and the arithmetic of a pipeline, on plain memory. FeaturePipeline runs it on
/// tensors, and serving::Pipeline runs it without LibTorch.
class PipelineCore {
 public:
  /// Errors:  as the constructor of FeaturePipeline.
  PipelineCore(
      std::vector<PipelineOutput> outputs,
      std::map<std::string, ColumnType> types,
      bool is_from_file);

  const std::vector<PipelineOutput>& outputs() const& {
    return outputs_;
  }
  int64_t num_dense() const {
    return num_dense_;
  }
  /// The columns that the outputs read, each once.
  const std::vector<ColumnUse>& columns() const& {
    return columns_;
  }
  std::map<std::string, ColumnType> types() const;
  std::vector<std::string> untyped_columns() const;

  /// The transform of a feature.
  /// Errors:  c10::ValueError listing the features if there is no such feature.
  const Transform& transform_of(std::string_view feature) const&;

  /// The inputs of apply(). `entries` are pairs of a name and a column, and
  /// `view_of(column)` is called for the columns that an output reads.
  template <class Entries, class ViewOf>
  PipelineInputs make_inputs(const Entries& entries, ViewOf view_of) const {
    PipelineInputs inputs;
    inputs.columns.resize(columns_.size());
    for (const auto& [name, column] : entries) {
      inputs.names.push_back(name);
      if (const auto found = positions_.find(name); found != positions_.end()) {
        inputs.columns[found->second] = view_of(column);
      }
    }
    return inputs;
  }

  /// Converts one batch. Returns a warning, which is empty if all is well.
  /// Errors:  as FeaturePipeline::apply().
  std::string apply(const PipelineInputs& inputs, PipelineMemory& memory) const;

 private:
  // An output and its transform. If the transform gives numbers, `first_dense` is the
  // first column of the output in the dense matrix.
  struct Step {
    Step(const PipelineOutput& of, int64_t first);

    const PipelineOutput* output;
    PreparedTransform transform;
    ReadableColumns readable;
    std::vector<size_t> columns = {};  // positions in columns_
    int64_t first_dense;
  };

  void add_columns(Step& step);
  void check_types();
  bool leaves_out(const PipelineInputs& inputs, const Step& step) const;
  void check_inputs(const PipelineInputs& inputs) const;
  std::string remember_types(const PipelineInputs& inputs) const;

  std::vector<PipelineOutput> outputs_;
  std::deque<Step> steps_;  // a deque, because steps can't be moved
  int64_t num_dense_ = 0;
  std::vector<ColumnUse> columns_;
  std::map<std::string, size_t, std::less<>> positions_;  // in columns_
  // The columns whose hashes depend on whether they have integers or text.
  std::vector<size_t> hashed_;
  bool is_from_file_ = false;
  mutable std::mutex mutex_;  // for types_
  mutable std::map<std::string, ColumnType> types_;
};

/// The limits of the file of a pipeline. Its vocabularies take about 20 bytes per value.
inline constexpr JsonLimits kPipelineLimits{.bytes = size_t{8} << 30};

/// The contents of a saved pipeline.
struct PipelineDefinition {
  std::vector<PipelineOutput> outputs = {};
  std::map<std::string, ColumnType> types = {};
};

Json write_pipeline(
    const std::vector<PipelineOutput>& outputs,
    const std::map<std::string, ColumnType>& types);

/// Errors:  as pipeline_from_json(), except for errors of the constructor.
PipelineDefinition read_pipeline(const Json& json);

/// Reads the file of a pipeline, and returns what `make` makes of its JSON.
/// Errors:  as load_pipeline().
template <class Make>
auto read_pipeline_file(const std::string& path, Make make) {
  const Json json = load_json(path, "[load_pipeline]", kPipelineLimits);
  try {
    return make(json);
  } catch (const checks::ValueError& error) {
    TESSERA_CHECK_VALUE(
        false, "[load_pipeline] {}: {}", path, checks::message_of_error(error));
  }
}

}  // namespace tessera::data
