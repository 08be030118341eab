// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/scan/row_scan.h"
#include "packages/search/src/scan/row_set.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The rows that filters have found. It forgets the least recently used filters when they
/// have more than `max_bytes`, or are more than 1,000. Thread safe.
class FilterCache {
 public:
  explicit FilterCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// The rows of a filter. find() returns them if the cache does not have them. Threads that
  /// miss the same rows at the same time call it each.
  template <class Find>
  std::shared_ptr<const RowSet> get(std::string_view filter, Find find) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find(entries_, filter, &Entry::filter);
      if (found != entries_.end()) {
        entries_.splice(entries_.begin(), entries_, found);
        return found->rows;
      }
    }
    auto rows = std::make_shared<const RowSet>(find());
    const std::lock_guard lock(mutex_);
    entries_.push_front({std::string(filter), rows});
    bytes_ += entries_.front().bytes();
    while (bytes_ > max_bytes_ || entries_.size() > kMaxEntries) {
      bytes_ -= entries_.back().bytes();
      entries_.pop_back();
    }
    return rows;
  }

 private:
  struct Entry {
    std::string filter;
    std::shared_ptr<const RowSet> rows;

    size_t bytes() const {
      return filter.size() + rows->words().size_bytes();
    }
  };
  static constexpr size_t kMaxEntries = 1000;

  size_t max_bytes_;
  std::mutex mutex_;  // for all below
  size_t bytes_ = 0;
  std::list<Entry> entries_;  // the one that was used last is the first
};

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
    return ids_[row];
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
    return attribute_rows_[row];
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
