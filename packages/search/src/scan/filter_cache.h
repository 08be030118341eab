// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/search/src/scan/row_set.h"

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

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

}  // namespace tessera
