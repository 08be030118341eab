// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tessera {

/// A set of rows of [0, size), with one bit for each row. Sets that are combined must have
/// the same size. Functions do not check that rows are in the range.
///
///   RowSet allowed(num_items);
///   allowed.add(7);
///   allowed &= RowSet::where(num_items, [](int64_t row) { ... });
class RowSet {
 public:
  static constexpr int64_t kWordRows = 64;

  /// An empty set.
  explicit RowSet(int64_t size = 0)
      : size_(size),
        words_(static_cast<size_t>((size + kWordRows - 1) / kWordRows)) {}

  /// The set of the rows of [0, size) for which contains_row(row) is true.
  template <class ContainsRow>
  static RowSet where(int64_t size, ContainsRow contains_row) {
    RowSet rows(size);
    for (int64_t begin = 0; begin < size; begin += kWordRows) {
      const int64_t end = std::min(begin + kWordRows, size);
      uint64_t word = 0;
      for (int64_t row = begin; row < end; ++row) {
        word |= uint64_t{contains_row(row)} << (row - begin);
      }
      rows.words_[word_of(begin)] = word;
    }
    return rows;
  }

  int64_t size() const {
    return size_;
  }
  bool contains(int64_t row) const {
    return (words_[word_of(row)] & bit_of(row)) != 0;
  }
  void add(int64_t row) {
    words_[word_of(row)] |= bit_of(row);
  }
  void remove(int64_t row) {
    words_[word_of(row)] &= ~bit_of(row);
  }

  /// The number of rows in the set.
  int64_t count() const {
    int64_t count = 0;
    for (const uint64_t word : words_) {
      count += std::popcount(word);
    }
    return count;
  }

  RowSet& operator&=(const RowSet& other) {
    std::ranges::transform(
        words_, other.words_, words_.begin(), std::bit_and<>());
    return *this;
  }
  RowSet& operator|=(const RowSet& other) {
    std::ranges::transform(
        words_, other.words_, words_.begin(), std::bit_or<>());
    return *this;
  }
  /// Replaces the set with all rows that are not in it.
  RowSet& complement() {
    std::ranges::transform(words_, words_.begin(), std::bit_not<>());
    if (size_ % kWordRows != 0) {
      words_.back() &= bit_of(size_) - 1;
    }
    return *this;
  }

  bool operator==(const RowSet&) const = default;

  /// Row 64 * i + j is bit j of word i. Bits at and above `size` are 0.
  std::span<const uint64_t> words() const& {
    return words_;
  }
  std::span<const uint64_t> words() && = delete;

 private:
  static size_t word_of(int64_t row) {
    return static_cast<size_t>(row / kWordRows);
  }
  static uint64_t bit_of(int64_t row) {
    return uint64_t{1} << (row % kWordRows);
  }

  int64_t size_;
  std::vector<uint64_t> words_;  // [ceil(size / 64)]
};

}  // namespace tessera
