// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>

#include "packages/data/src/column_view.h"

#include <span>
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

/// Calls `visit` with the values as std::span<const int64_t>, std::span<const float> or
/// std::span<const std::string>. The column must have passed validate().
template <class Visit>
void visit_values(const Column& column, Visit&& visit) {
  if (const auto* text =
          std::get_if<std::vector<std::string>>(&column.values)) {
    visit(std::span<const std::string>(*text));
    return;
  }
  const at::Tensor values = std::get<at::Tensor>(column.values).contiguous();
  const auto size = static_cast<size_t>(values.numel());
  if (values.scalar_type() == at::kLong) {
    visit(std::span(values.const_data_ptr<int64_t>(), size));
  } else {
    visit(std::span(values.const_data_ptr<float>(), size));
  }
}

/// The view of a column that has passed validate(). It is valid as long as `kept`, which
/// gets copies of tensors that are not contiguous.
ColumnView view_of(const Column& column, std::vector<at::Tensor>& kept);

}  // namespace tessera::data
