// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/column_view.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"

#include <algorithm>

namespace tessera::data {

size_t ColumnView::size() const {
  return std::visit([](const auto& span) { return span.size(); }, values);
}

int64_t ColumnView::batch_size() const {
  return row_splits ? static_cast<int64_t>(row_splits->size()) - 1
                    : static_cast<int64_t>(size());
}

ColumnType ColumnView::type() const {
  return std::holds_alternative<std::span<const std::string>>(values)
      ? ColumnType::kText
      : std::holds_alternative<std::span<const float>>(values)
      ? ColumnType::kFloat32
      : ColumnType::kInt64;
}

const char* kind_of(ColumnType type) {
  return type == ColumnType::kText   ? "text"
      : type == ColumnType::kFloat32 ? "floats"
                                     : "integers";
}

const char* kind_of(const ColumnView& column) {
  return kind_of(column.type());
}

void check_row_splits(
    std::span<const int64_t> row_splits,
    int64_t num_values,
    std::string_view column) {
  TESSERA_CHECK_VALUE(
      !row_splits.empty() && row_splits.front() == 0 &&
          row_splits.back() == num_values && std::ranges::is_sorted(row_splits),
      "[Columns '{}'] row_splits must ascend from 0 to {}, the number of values. Pass one split more than there are examples.",
      shorten(column),
      num_values);
}

void check_added_column(
    std::string_view name,
    bool has_name,
    std::optional<int64_t> batch_size,
    int64_t num_examples) {
  TESSERA_CHECK_VALUE(
      !has_name,
      "[Columns '{}'] there is already a column of this name. Choose another name.",
      shorten(name));
  TESSERA_CHECK_VALUE(
      !batch_size || num_examples == *batch_size,
      "[Columns '{}'] expected {} examples as in the other columns, but got {}. Pass the same examples in all columns.",
      shorten(name),
      batch_size.value_or(0),
      num_examples);
}

}  // namespace tessera::data
