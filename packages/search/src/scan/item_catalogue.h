// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/search/src/scan/filter_cache.h"
#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/scan/row_scan.h"
#include "packages/search/src/scan/row_set.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// The items among which a search chooses. Row i of their vectors is about the i-th item. Its
/// functions may be called by several threads.
class ItemCatalogue {
 public:
  /// `ids` ascend and stay in memory, as `attributes` do. nullptr: there are no attributes.
  ItemCatalogue(std::span<const int64_t> ids, const ItemAttributes* attributes);

  int64_t size() const {
    return std::ssize(ids_);
  }
  int64_t id_of(int64_t row) const {
    return ids_[static_cast<size_t>(row)];
  }
  /// The row of an id, or -1.
  int64_t row_of(int64_t id) const;
  /// The rows of these ids, ascending. Ids that are no items are left out.
  std::vector<int64_t> rows_of(std::span<const int64_t> ids) const;
  /// True if at least one item has attributes.
  bool has_attributes() const;

  /// Checks the k of a request.
  /// Errors:  ValueError that begins with `where`. So do those of all functions below.
  void check_k(int64_t k, const std::string& where) const;

  /// The rows that a filter and a list of ids let through. nullptr: all.
  std::shared_ptr<const RowSet> allowed(
      const std::string& filter,
      const std::optional<std::vector<int64_t>>& choose_from,
      const std::string& where) const;

  /// The column by which lists are diverse. It has no lists.
  const AttributeColumn& diverse_column(
      const std::string& name,
      int64_t max_per_value,
      const std::string& where) const;

  /// Returns the best `count` allowed rows, best first, or all if there are fewer.
  /// nullptr: all rows are allowed.
  using Ranked = std::function<
      std::vector<ScoredRow>(int64_t count, const RowSet* allowed)>;

  /// The best k allowed rows. With a column, at most `max_per_value` of them have the same
  /// value: a row is left out if so many better ones have its value. Rows without a value
  /// are not limited.
  std::vector<ScoredRow> choose(
      int64_t k,
      const AttributeColumn* column,
      int64_t max_per_value,
      const RowSet* allowed,
      const Ranked& ranked) const;

  /// The row of ItemAttributes of an item.
  int64_t attribute_row(int64_t row) const {
    return attribute_rows_[static_cast<size_t>(row)];
  }

 private:
  std::span<const int64_t> ids_;
  const ItemAttributes* attributes_;
  std::vector<int64_t> attribute_rows_;  // [items], or empty
  mutable FilterCache filters_;
};

/// Sorts by descending score, and then by row.
void sort_by_score(std::vector<ScoredRow>& rows);

/// The first k of these rows that are allowed and not excluded. `excluded` ascend.
std::vector<ScoredRow> first_rows(
    std::span<const ScoredRow> rows,
    int64_t k,
    const RowSet* allowed,
    std::span<const int64_t> excluded);

}  // namespace tessera
