// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/arrow/column_request.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera::data {

namespace {

// More columns at once take too much memory, because each has its own tensor or vector.
constexpr size_t kMaxColumns = 10'000;
constexpr size_t kMaxComparedNames = 20'000;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// The number of characters to change, add or remove, where upper and lower case are equal.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t k = 0; k < b.size(); ++k) {
      const size_t above = row[k + 1];
      row[k + 1] = std::min(
          {above + 1,
           row[k] + 1,
           diagonal + (lower(a[i]) == lower(b[k]) ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Up to three names that are like `name`, the most similar first.
std::vector<std::string> similar_names(
    const std::string& name,
    const std::vector<std::string>& names) {
  constexpr size_t kMaxShown = 3;
  constexpr size_t kMaxLength = 100;
  std::vector<std::pair<size_t, std::string>> found;
  const size_t limit = name.size() / 2;
  const size_t compared = std::min(names.size(), kMaxComparedNames);
  for (size_t i = 0; i < compared && name.size() <= kMaxLength; ++i) {
    if (names[i].size() > kMaxLength) {
      continue;
    }
    const size_t distance = edit_distance(name, names[i]);
    const bool is_part = name.size() >= 3 && names[i].starts_with(name);
    if (distance <= limit || is_part) {
      found.emplace_back(distance, names[i]);
    }
  }
  std::ranges::stable_sort(
      found, [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> similar;
  for (size_t i = 0; i < std::min(found.size(), kMaxShown); ++i) {
    similar.push_back(found[i].second);
  }
  return similar;
}

}  // namespace

std::vector<std::string> names_of(const std::vector<ColumnRequest>& requests) {
  std::vector<std::string> names;
  for (const ColumnRequest& request : requests) {
    names.push_back(request.name);
  }
  return names;
}

std::vector<int> find_columns(
    const std::string& where,
    const std::vector<std::string>& names,
    const std::vector<std::string>& requested,
    const char* advice) {
  constexpr int kTwice = -1;
  std::unordered_map<std::string_view, int> positions;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto [entry, is_new] =
        positions.emplace(names[i], static_cast<int>(i));
    if (!is_new) {
      entry->second = kTwice;
    }
  }
  std::vector<int> found;
  for (const std::string& name : requested) {
    const auto entry = positions.find(name);
    if (entry == positions.end()) {
      const std::vector<std::string> similar = similar_names(name, names);
      TESSERA_CHECK_VALUE(
          false,
          "{} has no column '{}'. {}: {}. {}",
          where,
          shorten(name),
          similar.empty() ? "Its columns are" : "Similar columns are",
          shorten_all(similar.empty() ? names : similar),
          advice);
    }
    TESSERA_CHECK_VALUE(
        entry->second != kTwice,
        "{} has several columns '{}'. Rename all but one, or leave the name out of `columns`.",
        where,
        shorten(name));
    found.push_back(entry->second);
  }
  return found;
}

std::vector<std::string> requested_columns(
    const std::string& where,
    const std::vector<std::string>& option,
    const std::vector<std::string>& names) {
  const std::vector<std::string>& requested = option.empty() ? names : option;
  TESSERA_CHECK_VALUE(
      requested.size() <= kMaxColumns,
      "{} would give {} columns, but a reader can handle {}. Name those that you need in `columns`.",
      where,
      requested.size(),
      kMaxColumns);
  TESSERA_CHECK_VALUE(
      !requested.empty(),
      "{} has no columns. Pass a file with columns.",
      where);
  std::unordered_set<std::string_view> seen;
  for (const std::string& name : option) {
    TESSERA_CHECK_VALUE(
        seen.insert(name).second,
        "{} `columns` names '{}' twice. Name each column once.",
        where,
        shorten(name));
  }
  return requested;
}

void check_keys(
    const std::string& where,
    const char* option,
    const std::vector<std::string>& keys,
    const std::vector<std::string>& requested) {
  for (const std::string& key : keys) {
    if (std::ranges::find(requested, key) != requested.end()) {
      continue;
    }
    const std::vector<std::string> similar = similar_names(key, requested);
    TESSERA_CHECK_VALUE(
        false,
        "{} `{}` has the column '{}', which is not read. The {} columns are: {}.",
        where,
        option,
        shorten(key),
        similar.empty() ? "read" : "similar",
        shorten_all(similar.empty() ? requested : similar));
  }
}

}  // namespace tessera::data
