// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/scan/item_catalogue.h"

#include <tessera/common/shorten.h>

#include "packages/search/src/scan/item_filter.h"
#include "src/common/check.h"

#include <unordered_map>
#include <utility>

namespace tessera {

namespace {

// A filter of a million items takes 125 kB.
constexpr size_t kFilterBytes = size_t{1} << 26;

}  // namespace

ItemCatalogue::ItemCatalogue(
    std::span<const int64_t> ids,
    const ItemAttributes* attributes)
    : ids_(ids), attributes_(attributes), filters_(kFilterBytes) {
  if (attributes_ != nullptr) {
    for (const int64_t id : ids_) {
      attribute_rows_.push_back(attributes_->row_of(id));
    }
  }
}

int64_t ItemCatalogue::row_of(int64_t id) const {
  const auto found = std::ranges::lower_bound(ids_, id);
  return found == ids_.end() || *found != id ? -1 : found - ids_.begin();
}

std::vector<int64_t> ItemCatalogue::rows_of(
    std::span<const int64_t> ids) const {
  std::vector<int64_t> rows;
  for (const int64_t id : ids) {
    const int64_t row = row_of(id);
    if (row >= 0) {
      rows.push_back(row);
    }
  }
  std::ranges::sort(rows);
  return rows;
}

bool ItemCatalogue::has_attributes() const {
  return std::ranges::any_of(attribute_rows_, [&](int64_t row) {
    return row + 1 < attributes_->num_rows();
  });
}

void ItemCatalogue::check_k(int64_t k, const std::string& where) const {
  TESSERA_CHECK_VALUE(
      k >= 1 && k <= size(),
      "{} k must be in [1, {}], the number of items, but is {}. Ask for that many.",
      where,
      size(),
      k);
}

std::shared_ptr<const RowSet> ItemCatalogue::allowed(
    const std::string& filter,
    const std::optional<std::vector<int64_t>>& choose_from,
    const std::string& where) const {
  std::shared_ptr<const RowSet> allowed;
  if (!filter.empty()) {
    TESSERA_CHECK_VALUE(
        attributes_ != nullptr,
        "{} `where` needs attributes of the items, but there are none. Give the items attributes, or leave `where` empty.",
        where);
    allowed = filters_.get(filter, [&] {
      const RowSet rows = rows_where(filter, *attributes_);
      return RowSet::where(size(), [&](int64_t row) {
        return rows.contains(attribute_row(row));
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

const AttributeColumn& ItemCatalogue::diverse_column(
    const std::string& name,
    int64_t max_per_value,
    const std::string& where) const {
  TESSERA_CHECK_VALUE(
      attributes_ != nullptr,
      "{} `diversity` needs attributes of the items, but there are none. Give the items attributes, or leave `diversity` out.",
      where);
  const AttributeColumn& column = attributes_->at(name, where + " diversity:");
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

std::vector<ScoredRow> ItemCatalogue::choose(
    int64_t k,
    const AttributeColumn* column,
    int64_t max_per_value,
    const RowSet* allowed,
    const Ranked& ranked) const {
  if (column == nullptr) {
    return ranked(k, allowed);
  }
  const int64_t count = 4 * k;
  std::unordered_map<int64_t, int64_t> num_chosen;
  const auto value_of = [&](int64_t row) {
    return column->values[attribute_row(row)];
  };
  const auto has_room = [&](int64_t row) {
    const auto found = num_chosen.find(value_of(row));
    return found == num_chosen.end() || found->second < max_per_value;
  };
  std::vector<ScoredRow> chosen;
  RowSet open;  // rows that may still be chosen
  for (auto rows = ranked(count, allowed);; rows = ranked(count, &open)) {
    for (const ScoredRow& row : rows) {
      if (std::ssize(chosen) < k && has_room(row.number)) {
        chosen.push_back(row);
        const int64_t value = value_of(row.number);
        num_chosen[value] += data::is_missing(value) ? 0 : 1;
      }
    }
    if (std::ssize(rows) < count || std::ssize(chosen) == k) {
      return chosen;
    }
    open = RowSet::where(size(), [&](int64_t row) {
      return (allowed == nullptr || allowed->contains(row)) && has_room(row);
    });
    for (const ScoredRow& row : chosen) {
      open.remove(row.number);
    }
  }
}

void sort_by_score(std::vector<ScoredRow>& rows) {
  std::ranges::sort(rows, [](const ScoredRow& left, const ScoredRow& right) {
    return left.score != right.score ? left.score > right.score
                                     : left.number < right.number;
  });
}

std::vector<ScoredRow> first_rows(
    std::span<const ScoredRow> rows,
    int64_t k,
    const RowSet* allowed,
    std::span<const int64_t> excluded) {
  std::vector<ScoredRow> first;
  for (const ScoredRow& row : rows) {
    if (std::ssize(first) == k) {
      break;
    }
    if ((allowed == nullptr || allowed->contains(row.number)) &&
        !std::ranges::binary_search(excluded, row.number)) {
      first.push_back(row);
    }
  }
  return first;
}

}  // namespace tessera
