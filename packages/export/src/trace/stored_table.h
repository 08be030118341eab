// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <tessera/features/feature_config.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>

namespace tessera::exporting {

/// A table in the form in which a file holds it. For int8, row = scale * stored + offset.
///
/// The rows of a key table are in the order of its keys. One more row at the end is for
/// unknown keys: a copy of the default key's row, or zeros without a default key.
struct StoredTable {
  at::Tensor rows = {};  // [vocab, dim] or [keys + 1, dim]
  at::Tensor scales = {};  // [vocab] or [keys + 1], undefined unless int8
  at::Tensor offsets = {};  // [vocab] or [keys + 1], undefined unless int8
  /// The ascending keys of a key table, and after them the largest int64, so that a
  /// search always ends inside the tensor. If the largest int64 is also a key, a search
  /// finds the entry of the key, because it comes first. Undefined for a table with a
  /// vocabulary.
  at::Tensor keys = {};  // [keys + 1] int64
  /// The padding key of a key table. Undefined without one. It is a tensor because
  /// TorchScript and compilers can't read the smallest int64 as a number.
  at::Tensor padding_key = {};  // [] int64
  /// True if rows, scales and offsets are placeholders, whose values are zeros.
  bool is_placeholder = false;
};

/// Calls visit(name, tensor) for each tensor that a file holds of the table, the rows first.
/// `name` is the name of the rows.
template <class Visit>
void visit_tensors(
    const StoredTable& table,
    const std::string& name,
    const Visit& visit) {
  const std::pair<const char*, const at::Tensor&> tensors[] = {
      {"", table.rows},
      {"_scales", table.scales},
      {"_offsets", table.offsets},
      {"_keys", table.keys},
      {"_padding_key", table.padding_key}};
  for (const auto& [suffix, tensor] : tensors) {
    if (tensor.defined()) {
      visit(name + suffix, tensor);
    }
  }
}

/// Converts the rows of the table to `dtype`: kFloat, kBFloat16, kHalf or kChar. Rows
/// that are already in this dtype and in the order of the file are not copied.
/// Errors:  c10::ValueError beginning with `where`, for values that do not fit.
StoredTable store(
    const TableState& table,
    at::ScalarType dtype,
    const std::string& where);

/// Converts the rows with `numbers` [rows] int64, or all rows if `numbers` is undefined. A
/// key table's rows are numbered as in KeyTableRows::all_rows().
/// Errors:  those of the other store().
StoredTable store(
    const TableState& table,
    const at::Tensor& numbers,
    at::ScalarType dtype,
    const std::string& where);

/// Like store(), but a table that store() would copy gets placeholders, which take no
/// memory. They have the sizes and dtypes of the copy, and all their values are zeros.
StoredTable placeholder_of(const TableState& table, at::ScalarType dtype);

/// Sets the keys and the padding key of a key table. Does nothing for others.
void add_keys(const TableState& table, StoredTable& stored);

/// Returns the number of the stored row of each key, for `keys` [keys] int64. An unknown
/// key gets the number of the last row, and the padding key gets -1.
at::Tensor find_stored(const StoredTable& table, const at::Tensor& keys);

/// The treatment of the ids of a feature. The ids of a key table are the results of
/// find_stored().
struct IdRules {
  /// Ids from this number on are out of range.
  int64_t rows = 0;
  /// If true, ids out of range look up zeros. Otherwise they are refused.
  bool zeros_out_of_range = false;
  /// If true, negative ids of bags are dropped. Otherwise they are refused.
  bool drops_negative = false;
};

IdRules id_rules_of(const FeatureConfig& feature, const StoredTable& table);

/// The rows of `ids` [ids] as float32 [ids, dim].
at::Tensor read_stored(const StoredTable& table, const at::Tensor& ids);

}  // namespace tessera::exporting
