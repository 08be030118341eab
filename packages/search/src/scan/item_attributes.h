// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/data/src/column_view.h"
#include "packages/search/src/scan/row_set.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// An attribute of all items, in memory that somebody else owns. All values are integers
/// with the order of the values that they stand for, or data::kMissing.
struct AttributeColumn {
  std::string_view name = {};
  data::ColumnType type = data::ColumnType::kInt64;
  /// Integers, data::ordered() of floats, or numbers of texts: [rows], or with row_splits
  /// the values of all rows one after the other.
  std::span<const int64_t> values = {};
  /// [rows + 1] if the column has lists, otherwise empty. Row i has the values
  /// [row_splits[i], row_splits[i + 1]).
  std::span<const int64_t> row_splits = {};
  /// The different texts of the column, sorted by their bytes. Empty for numbers.
  std::vector<std::string_view> texts = {};

  bool has_lists() const {
    return !row_splits.empty();
  }
  std::span<const int64_t> values_of(int64_t row) const {
    const auto i = static_cast<size_t>(row);
    return has_lists()
        ? values.subspan(row_splits[i], row_splits[i + 1] - row_splits[i])
        : values.subspan(i, 1);
  }
};

/// The attributes of items, such as genres and years. The last row has missing values, and
/// stands for all items that have no row of their own.
class ItemAttributes {
 public:
  /// No attributes.
  ItemAttributes() = default;
  /// Reads what write_item_attributes() has written. The bytes must stay, and begin at a
  /// multiple of 8.
  /// Errors:  c10::ValueError beginning with `where` if the bytes are damaged.
  ItemAttributes(std::string_view bytes, const std::string& where);

  int64_t num_rows() const {
    return std::ssize(ids_) + 1;
  }
  const std::vector<AttributeColumn>& columns() const& {
    return columns_;
  }
  /// Errors:  c10::ValueError beginning with `where` and listing the columns, if none has
  ///          this name.
  const AttributeColumn& at(std::string_view name, const std::string& where)
      const&;
  /// The row of the item with this id, which may be any integer.
  int64_t row_of(int64_t id) const;

 private:
  std::span<const int64_t> ids_;  // [rows - 1], ascending
  std::vector<AttributeColumn> columns_;
};

/// Writes attributes of items as bytes for ItemAttributes. Example i of the columns
/// describes the item ids[i], or item i if there are no ids.
/// Errors:  c10::ValueError if there is no column, if a name is there twice, if the
///          numbers of examples and ids differ, for wrong row_splits, and if two
///          examples have the same id.
std::string write_item_attributes(
    const std::vector<std::pair<std::string, data::ColumnView>>& columns,
    std::span<const int64_t> ids = {});

}  // namespace tessera
