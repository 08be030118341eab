// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>

#include "packages/data/src/column_view.h"

#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

inline const char* kind_of(const Column& column) {
  if (std::holds_alternative<std::vector<std::string>>(column.values)) {
    return "text";
  }
  const auto& tensor = std::get<at::Tensor>(column.values);
  return tensor.scalar_type() == at::kLong ? "integers" : "floats";
}

/// The column of this name.
/// Errors:  c10::ValueError that begins with `where`, with the known names.
const Column& find_column(
    const Columns& columns,
    std::string_view name,
    const std::string& where);

/// The column of this name, which has one value per example.
/// Errors:  c10::ValueError that begins with `where` for a column that is missing or has
///          lists.
const Column& find_value_column(
    const Columns& columns,
    std::string_view name,
    const std::string& where);

/// The view of a column that has passed validate(). It is valid as long as `kept`, which
/// gets copies of tensors that are not contiguous.
ColumnView view_of(const Column& column, std::vector<at::Tensor>& kept);

/// Calls `visit` with the values as std::span<const int64_t>, std::span<const float> or
/// std::span<const std::string>. The column must have passed validate().
template <class Visit>
void visit_values(const Column& column, Visit&& visit) {
  std::vector<at::Tensor> kept;
  std::visit(visit, view_of(column, kept).values);
}

}  // namespace tessera::data
