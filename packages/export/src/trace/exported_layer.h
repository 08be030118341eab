// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/trace/stored_table.h"
#include "src/common/atomic_file.h"
#include "src/engine/embedding_state.h"
#include "src/features/batch.h"

#include <tessera/engine/table_module.h>
#include <tessera/export/exported_model.h>
#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::exporting {

/// A layer, and its tables in the form in which they are written.
struct ExportedLayer {
  /// The beginning of error messages.
  std::string where = {};
  const EmbeddingState* state = nullptr;
  Nest<FeatureConfig> structure = {};
  std::vector<std::string> paths = {};
  /// The features of `state`, but for batches of any size.
  std::vector<FeatureState> features = {};
  std::vector<size_t> exported = {};  // indices of features
  std::vector<StoredTable> tables = {};  // undefined rows: no feature uses it
  /// The dtype of all tables in the file. If unset, each table keeps its own.
  std::optional<at::ScalarType> dtype = {};

  /// The dtype in which a table is written.
  at::ScalarType dtype_of(size_t table) const;
};

/// When tables are converted to the dtype of the file.
enum class Conversion {
  kNow,
  kWhenWritten  // until then, tables are placeholders
};

/// Collects the parts of a layer that a file contains.
/// Errors:  c10::ValueError beginning with `where`, for tables on a sharded strategy,
///          unknown features, a dtype that files can't hold, and values that the dtype
///          can't hold.
ExportedLayer export_layer(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& structure,
    const ExportOptions& options,
    Conversion conversion,
    const std::string& where);

/// Exports a single layer: calls `write` with it while nothing changes its tables. `write`
/// commits the file.
/// Errors:  those of export_layer() and AtomicFile; c10::ValueError beginning with `where`
///          for nullptr, and for a layer whose activations are not float32.
void write_layer(
    const TableModule* tables,
    const std::string& path,
    const ExportOptions& options,
    Conversion conversion,
    const std::string& where,
    c10::function_ref<void(ExportedLayer& layer, AtomicFile& file)> write);

/// The name of a table's rows in a file. visit_tensors() derives the table's other names.
std::string stored_name(size_t table);

/// The activations that the layer computes for one feature, from the rows in the file.
at::Tensor lookup_stored(const ExportedLayer& layer, size_t index, IdBags bags);

/// The activations of all features of a batch, from the rows in the file.
Nest<at::Tensor> lookup_all(
    const ExportedLayer& layer,
    const Features& features,
    const Weights& weights);

/// The sizes of `shape`, with `otherwise` in place of unknown ones.
std::vector<int64_t> sizes_or(const PartialShape& shape, int64_t otherwise);

/// Checks the example of a whole model, and returns it as to_parts() does: sparse tensors
/// as sparse features, and flat weights.
/// Errors:  c10::ValueError beginning with `where`, for options that only a layer has, and
///          for an example that is empty or does not fit forward().
ExportExample model_parts(
    const detail::ExportedModel& model,
    const ExportExample& example,
    const ExportOptions& options,
    const std::string& where);

}  // namespace tessera::exporting
