// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/trace/record_graph.h"
#include "packages/export/src/trace/stored_table.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera::exporting {

/// Looks up one feature with operators only, so that LibTorch's tracer can record it. No
/// operator depends on values: ids that are pruned or out of range read another row,
/// which does not count. The number of rows of the batch is a constant of the record.
///
/// The conditions that a batch must meet are appended to `checks`. Their messages name
/// `name` and the bound, but not the id.
/// Shapes:  weights [nnz], or undefined. The result has the shape of the activation.
at::Tensor branch_free_lookup(
    const FeatureState& state,
    const StoredTable& table,
    const std::string& name,
    const Feature& feature,
    const at::Tensor& weights,
    Checks& checks);

/// The text with `?` in place of what a message in a `.pt2` file can't have. Compilers
/// paste messages into C++, so they are plain ASCII without quotes, backslashes, braces
/// and percent signs.
std::string plain_text(const std::string& text);

}  // namespace tessera::exporting
