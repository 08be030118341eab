// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/tables/table_state.h"

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera::exporting {

/// A table in the form in which a file holds it. For int8, row = scale * stored + offset.
struct StoredTable {
  at::Tensor rows = {};  // [vocab, dim]
  at::Tensor scales = {};  // [vocab], undefined unless int8
  at::Tensor offsets = {};  // [vocab], undefined unless int8
  /// True if the tensors are placeholders, whose values are zeros.
  bool is_placeholder = false;
};

/// Converts the table to `dtype`: kFloat, kBFloat16, kHalf or kChar. A table that has
/// this dtype already is not copied.
/// Errors:  c10::ValueError beginning with `where`, for values that do not fit.
StoredTable store(
    const TableState& table,
    at::ScalarType dtype,
    const std::string& where);

/// Like store(), but a table that store() would copy gets placeholders, which take no
/// memory. They have the sizes and dtypes of the copy, and all their values are zeros.
StoredTable placeholder_of(const TableState& table, at::ScalarType dtype);

/// The rows of `ids` [ids] as float32 [ids, dim].
at::Tensor read_stored(const StoredTable& table, const at::Tensor& ids);

}  // namespace tessera::exporting
