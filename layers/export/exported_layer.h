// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/export/stored_table.h"
#include "src/engine/embedding_state.h"
#include "src/features/feature_state.h"
#include "src/features/id_bags.h"

#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>
#include <tessera/layers/export_torchscript.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::exporting {

/// A layer and its tables as they are written.
struct ExportedLayer {
  /// What messages begin with.
  std::string where = {};
  const EmbeddingState* state = nullptr;
  Nest<FeatureConfig> structure = {};
  std::vector<std::string> paths = {};
  /// As in `state`, but for batches of any size.
  std::vector<FeatureState> features = {};
  std::vector<size_t> exported = {};  // indices of features
  std::vector<StoredTable> tables = {};  // empty where no feature needs one
};

/// Errors:  c10::ValueError beginning with `where`, for tables on shards, unknown
///          features and values that the dtype can't hold.
ExportedLayer export_layer(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& structure,
    const ExportOptions& options,
    const std::string& where);

/// The name of a table's rows among the tensors of a file. Scales and offsets of int8
/// rows have the same name with "_scales" and "_offsets".
std::string stored_name(size_t table);

/// What the layer gives for one feature, from rows as they are in the file.
at::Tensor look_up_stored(
    const ExportedLayer& layer,
    size_t index,
    IdBags bags);

/// The same for a batch of all features.
Nest<at::Tensor> look_up_all(
    const ExportedLayer& layer,
    const Features& features,
    const Weights& weights);

/// The number of rows of every ragged batch; -1 where any number that fits is allowed.
int64_t fixed_rows_of(const FeatureState& feature);

/// The sizes of `shape`, with `otherwise` in place of unknown ones.
std::vector<int64_t> sizes_or(const PartialShape& shape, int64_t otherwise);

/// Errors:  c10::ValueError beginning with `where`, if two paths are the same.
void check_unique(
    const std::vector<std::string>& paths,
    const std::string& where);

}  // namespace tessera::exporting
