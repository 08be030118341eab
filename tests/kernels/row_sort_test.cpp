// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/row_sort.h"
#include "tests/test_util.h"

namespace tessera::kernels::row_sort_test {

// The position before sorting is the source. Equal rows must keep its order.
std::vector<Contribution> contributions_of(const std::vector<uint32_t>& rows) {
  std::vector<Contribution> contributions;
  contributions.reserve(rows.size());
  for (const uint32_t row : rows) {
    contributions.push_back({row, static_cast<uint32_t>(contributions.size())});
  }
  return contributions;
}

void expect_sorted(
    const std::vector<uint32_t>& rows,
    int row_bits,
    RowBits equal = {}) {
  std::vector<Contribution> actual = contributions_of(rows);
  std::vector<Contribution> expected = actual;
  std::stable_sort(
      expected.begin(),
      expected.end(),
      [](const Contribution& left, const Contribution& right) {
        return left.row < right.row;
      });
  std::vector<Contribution> scratch(rows.size());
  const Contribution* sorted = sort_by_row(
      actual.data(),
      scratch.data(),
      static_cast<int64_t>(rows.size()),
      row_bits,
      equal);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(sorted[i].row, expected[i].row) << "at " << i;
    ASSERT_EQ(sorted[i].source, expected[i].source) << "at " << i;
  }
}

// Counts near the switch between the two algorithms and far from it.
const std::vector<size_t> kCounts{0, 1, 2, 3, 31, 32, 33, 500, 5000};

TEST(RowSortTest, SortsRowsAndKeepsTheOrderOfEqualOnes) {
  std::mt19937 random(1);
  for (const size_t count : kCounts) {
    for (const uint32_t vocab : {1U, 2U, 7U, 255U, 256U, 257U, 100'000U}) {
      std::vector<uint32_t> rows(count);
      std::generate(rows.begin(), rows.end(), [&] { return random() % vocab; });
      expect_sorted(rows, 17);
      expect_sorted(rows, 32);
    }
  }
}

TEST(RowSortTest, SkipsEqualBits) {
  std::mt19937 random(2);
  for (const size_t count : kCounts) {
    for (const int begin : {0, 1, 2, 3, 6, 9, 15, 21, 30, 31, 32}) {
      for (int end = begin; end <= 32; end += end == 31 ? 1 : 5) {
        for (int row_bits = end; row_bits <= 32; row_bits += 7) {
          SCOPED_TRACE(
              std::to_string(begin) + " to " + std::to_string(end) + " of " +
              std::to_string(row_bits));
          const uint64_t varying = (uint64_t{1} << row_bits) -
              (uint64_t{1} << end) + (uint64_t{1} << begin) - 1;
          const auto mask = static_cast<uint32_t>(varying);
          const uint32_t common = random() & ~mask;
          std::vector<uint32_t> rows(count);
          std::generate(rows.begin(), rows.end(), [&] {
            return (random() & mask) | common;
          });
          expect_sorted(rows, row_bits, {begin, end});
        }
      }
    }
  }
}

TEST(RowSortTest, SortsTheLargestRows) {
  std::vector<uint32_t> rows(1000, 4294967293U);
  for (size_t i = 0; i < rows.size(); i += 3) {
    rows[i] = i % 2 == 0 ? 0U : 4294967292U;
  }
  expect_sorted(rows, 32);
}

TEST(RowSortTest, SortsSortedReversedAndEqualRows) {
  std::vector<uint32_t> rows(3000);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<uint32_t>(i / 2);
  }
  expect_sorted(rows, 11);
  std::reverse(rows.begin(), rows.end());
  expect_sorted(rows, 11);
  expect_sorted(std::vector<uint32_t>(3000, 9), 11);
}

}  // namespace tessera::kernels::row_sort_test
