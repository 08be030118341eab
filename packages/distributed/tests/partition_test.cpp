// SPDX-License-Identifier: Apache-2.0
#include "packages/distributed/src/partition.h"

#include "tests/test_util.h"

namespace tessera::partition_test {

const std::vector<TablePlacement> kSplit{
    TablePlacement::row_wise(),
    TablePlacement::row_wise(RowSplit::kMod),
    TablePlacement::table_wise(0)};

// Every row has one owner, and its key gives its local index there.
TEST(PartitionTest, KeysAreRowsInTheOrderOfTheirOwners) {
  for (const TablePlacement& placement : kSplit) {
    for (const int64_t vocab : {1, 2, 7, 40, 41}) {
      for (const int64_t ranks : {1, 2, 3, 7, 50}) {
        SCOPED_TRACE(
            c10::str(to_string(placement), " ", vocab, " over ", ranks));
        const distributed::Partition partition(placement, vocab, ranks);
        std::set<int64_t> seen;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const LocalRows rows = partition.rows_of(rank);
          EXPECT_EQ(rows.count, partition.count(rank));
          EXPECT_FALSE(rows.is_data_parallel || rows.is_copy);
          for (int64_t i = 0; i < rows.count; ++i) {
            const int64_t row = rows.numbers[i];
            EXPECT_TRUE(seen.insert(row).second);
            EXPECT_EQ(
                partition.key_of(static_cast<uint32_t>(row)),
                partition.begin(rank) + i);
          }
        }
        EXPECT_EQ(seen.size(), static_cast<size_t>(vocab));
        EXPECT_EQ(*seen.rbegin(), vocab - 1);
      }
    }
  }
}

TEST(PartitionTest, TheFirstRanksTakeTheRemainder) {
  for (const RowSplit split : {RowSplit::kDiv, RowSplit::kMod}) {
    const distributed::Partition partition(
        TablePlacement::row_wise(split), 11, 4);
    EXPECT_EQ(partition.count(0), 3);
    EXPECT_EQ(partition.count(1), 3);
    EXPECT_EQ(partition.count(2), 3);
    EXPECT_EQ(partition.count(3), 2);
  }
}

TEST(PartitionTest, RanksBeyondTheRowsAreEmpty) {
  const distributed::Partition partition(
      TablePlacement::row_wise(RowSplit::kMod), 2, 5);
  EXPECT_EQ(partition.rows_of(1).count, 1);
  EXPECT_EQ(partition.rows_of(2).count, 0);
  EXPECT_EQ(partition.rows_of(4).count, 0);
}

TEST(PartitionTest, EachRankHasAllRowsOfADataParallelTable) {
  const distributed::Partition partition(TablePlacement::data_parallel(), 9, 4);
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(partition.rows_of(rank).count, 9);
    EXPECT_TRUE(partition.rows_of(rank).is_data_parallel);
    EXPECT_EQ(partition.rows_of(rank).is_copy, rank > 0);
  }
}

TEST(LocalRowsTest, CountsTheRowsBeforeARow) {
  const LocalRows rows{.numbers = {.first = 2, .step = 3}, .count = 4};
  const std::vector<int64_t> expected{
      0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4};  // of 2, 5, 8, 11
  for (size_t row = 0; row < expected.size(); ++row) {
    EXPECT_EQ(rows.count_before(static_cast<int64_t>(row)), expected[row]);
  }
}

TEST(PartitionTest, RefusesARankThatDoesNotExist) {
  const ShardingOptions options{
      .placement = {{"users", TablePlacement::table_wise(4)}}};
  EXPECT_VALUE_ERROR(
      distributed::placement_of("users", {}, options, 4),
      "[ShardingOptions] table 'users' is placed on rank 4, but the ranks "
      "are 0 to 3");
  EXPECT_EQ(
      distributed::placement_of("movies", {}, options, 4),
      TablePlacement::row_wise());
}

}  // namespace tessera::partition_test
