// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/shorten.h>

#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/scan/item_filter.h"
#include "packages/search/src/scan/row_scan.h"
#include "packages/search/src/scan/row_set.h"
#include "src/common/check.h"

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
#include <unordered_map>
#include <utility>
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

/// Says which items a request gets.
struct ItemChoice {
  int64_t k = 0;
  std::shared_ptr<const RowSet> allowed = {};  // nullptr: all rows
  /// At most `max_per_value` items have the same value in this column. Rows without a value
  /// are not limited. nullptr: any number.
  const AttributeColumn* diverse = nullptr;
  int64_t max_per_value = 0;

  /// How many of the best allowed rows a search should find first.
  int64_t num_searched() const {
    return diverse == nullptr ? k : 4 * k;
  }
};

/// The items among which a search chooses. Row i of their vectors is about the i-th item. Its
/// functions may be called by several threads.
class ItemCatalogue {
 public:
  /// `ids` ascend and stay in memory, as `attributes` do.
  ItemCatalogue(std::span<const int64_t> ids, const ItemAttributes& attributes)
      : ids_(ids), attributes_(attributes), filters_(kFilterBytes) {
    if (!attributes_.columns().empty()) {
      for (const int64_t id : ids_) {
        attribute_rows_.push_back(attributes_.row_of(id));
      }
    }
  }

  int64_t size() const {
    return std::ssize(ids_);
  }
  int64_t id_of(int64_t row) const {
    return ids_[row];
  }
  /// The row of an id, or -1.
  int64_t row_of(int64_t id) const {
    const auto found = std::ranges::lower_bound(ids_, id);
    return found == ids_.end() || *found != id ? -1 : found - ids_.begin();
  }
  /// The rows of these ids, in their order. Ids that are no items are left out.
  std::vector<int64_t> rows_of(std::span<const int64_t> ids) const {
    std::vector<int64_t> rows;
    for (const int64_t id : ids) {
      const int64_t row = row_of(id);
      if (row >= 0) {
        rows.push_back(row);
      }
    }
    return rows;
  }

  /// Checks the k of a request.
  /// Errors:  ValueError that begins with `where`. So do those of all functions below.
  void check_k(int64_t k, const std::string& where) const {
    TESSERA_CHECK_VALUE(
        k >= 1 && k <= size(),
        "{} k must be in [1, {}], the number of items, but is {}. Ask for that many.",
        where,
        size(),
        k);
  }

  /// The rows that a filter and a list of ids let through. nullptr: all.
  std::shared_ptr<const RowSet> allowed(
      const std::string& filter,
      const std::optional<std::vector<int64_t>>& choose_from,
      const std::string& where) const {
    std::shared_ptr<const RowSet> allowed;
    if (!filter.empty()) {
      TESSERA_CHECK_VALUE(
          !attributes_.columns().empty(),
          "{} `where` needs attributes of the items, but there are none. Give the items attributes, or leave `where` empty.",
          where);
      allowed = filters_.get(filter, [&] {
        const RowSet rows = rows_where(filter, attributes_);
        return RowSet::where(size(), [&](int64_t row) {
          return rows.contains(attribute_rows_[row]);
        });
      });
    }
    if (choose_from) {
      RowSet chosen(size());
      for (const int64_t id : *choose_from) {
        TESSERA_CHECK_VALUE(
            row_of(id) >= 0,
            "{} choose_from has the id {}, which no item has. Remove it.",
            where,
            id);
        chosen.add(row_of(id));
      }
      if (allowed != nullptr) {
        chosen &= *allowed;
      }
      allowed = std::make_shared<const RowSet>(std::move(chosen));
    }
    return allowed;
  }

  /// The column by which lists are diverse. It has no lists.
  const AttributeColumn& diverse_column(
      const std::string& name,
      int64_t max_per_value,
      const std::string& where) const {
    TESSERA_CHECK_VALUE(
        !attributes_.columns().empty(),
        "{} `diversity` needs attributes of the items, but there are none. Give the items attributes, or leave `diversity` out.",
        where);
    const AttributeColumn& column = attributes_.at(name, where + " diversity:");
    TESSERA_CHECK_VALUE(
        !column.has_lists(),
        "{} `diversity` needs a column with one value per item, but '{}' has lists. Choose another.",
        where,
        shorten(name));
    TESSERA_CHECK_VALUE(
        max_per_value >= 1,
        "{} `diversity` needs max_per_value >= 1, but it is {}. Set it.",
        where,
        max_per_value);
    return column;
  }

  /// Returns the best `count` of the allowed rows, best first, or all if there are fewer.
  using Search = std::function<
      std::vector<ScoredRow>(int64_t count, const RowSet& allowed)>;

  /// The best k rows. `rows` are the best allowed ones: num_searched() or more, or all if
  /// there are fewer. With a diverse column, a row is left out if `max_per_value` better
  /// ones have its value. If too few are left, `search` finds more. nullptr: there are no
  /// more than `rows`.
  std::vector<ScoredRow> choose(
      const ItemChoice& choice,
      std::vector<ScoredRow> rows,
      const Search& search) const {
    if (choice.diverse == nullptr) {
      rows.resize(std::min(rows.size(), static_cast<size_t>(choice.k)));
      return rows;
    }
    std::unordered_map<int64_t, int64_t> num_chosen;
    const auto value_of = [&](int64_t row) {
      return choice.diverse->values[attribute_rows_[row]];
    };
    const auto has_room = [&](int64_t row) {
      const auto found = num_chosen.find(value_of(row));
      return found == num_chosen.end() || found->second < choice.max_per_value;
    };
    std::vector<ScoredRow> chosen;
    while (true) {
      for (const ScoredRow& row : rows) {
        if (std::ssize(chosen) < choice.k && has_room(row.number)) {
          chosen.push_back(row);
          const int64_t value = value_of(row.number);
          num_chosen[value] += data::is_missing(value) ? 0 : 1;
        }
      }
      const bool are_all = std::ssize(rows) < choice.num_searched();
      if (are_all || search == nullptr || std::ssize(chosen) == choice.k) {
        return chosen;
      }
      RowSet open = RowSet::where(size(), [&](int64_t row) {
        return (choice.allowed == nullptr || choice.allowed->contains(row)) &&
            has_room(row);
      });
      for (const ScoredRow& row : chosen) {
        open.remove(row.number);
      }
      rows = search(choice.num_searched(), open);
    }
  }

 private:
  // A filter of a million items takes 125 kB.
  static constexpr size_t kFilterBytes = size_t{1} << 26;

  std::span<const int64_t> ids_;
  const ItemAttributes& attributes_;
  std::vector<int64_t> attribute_rows_;  // [items], or empty
  mutable FilterCache filters_;
};

/// Gives the rows these scores, and sorts them by descending score and then by row.
inline void sort_by(
    std::span<const float> scores,
    std::vector<ScoredRow>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].score = scores[i];
  }
  std::ranges::sort(rows, [](const ScoredRow& left, const ScoredRow& right) {
    return left.score != right.score ? left.score > right.score
                                     : left.number < right.number;
  });
}

}  // namespace tessera
