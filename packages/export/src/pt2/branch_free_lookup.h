// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/trace/exported_layer.h"
#include "packages/export/src/trace/record_graph.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace tessera::exporting {

/// Looks up feature `index` of the layer with operators only, so that LibTorch's tracer can
/// record it. No operator depends on values: ids that are pruned or out of range read
/// another row, which does not count. The number of rows of the batch is a constant of the
/// record.
///
/// The conditions that a batch must meet are appended to `checks`. Their messages name
/// the feature and the bound, but not the id.
/// Shapes:  weights [nnz], or undefined. The result has the shape of the activation.
at::Tensor branch_free_lookup(
    const ExportedLayer& layer,
    size_t index,
    const Feature& feature,
    const at::Tensor& weights,
    Checks& checks);

}  // namespace tessera::exporting
