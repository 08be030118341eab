// SPDX-License-Identifier: Apache-2.0
#include <tessera/features/partial_shape.h>

#include "tests/test_util.h"

namespace tessera::test::partial_shape_test {

constexpr auto kUnknown = std::nullopt;

TEST(PartialShapeTest, HasItsSizesOnlyIfAllAreKnown) {
  EXPECT_EQ(
      known_sizes({int64_t{2}, int64_t{4}}), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(known_sizes({int64_t{2}, kUnknown}), std::nullopt);
  EXPECT_EQ(known_sizes({}), std::vector<int64_t>());
}

TEST(PartialShapeTest, MergeKeepsTheKnownSizesOfBoth) {
  const PartialShape left{2, kUnknown, kUnknown};
  const PartialShape right{kUnknown, 4, kUnknown};
  const PartialShape merged{2, 4, kUnknown};
  EXPECT_EQ(merge(left, right), merged);
  EXPECT_EQ(merge(right, left), merged);
  EXPECT_EQ(merge(merged, merged), merged);
  EXPECT_EQ(merge({}, {}), PartialShape());
}

TEST(PartialShapeTest, MergeRefusesOtherRanksAndSizes) {
  EXPECT_EQ(merge({2, kUnknown}, {2}), std::nullopt);
  EXPECT_EQ(merge({2, 4}, {2, 3}), std::nullopt);
  EXPECT_EQ(merge({kUnknown, 4}, {2, 3}), std::nullopt);
}

TEST(PartialShapeTest, FillUnknownKeepsKnownSizes) {
  EXPECT_EQ(
      fill_unknown({2, kUnknown, kUnknown}, {3, 4, kUnknown}),
      (PartialShape{2, 4, kUnknown}));
  EXPECT_VALUE_ERROR(
      fill_unknown({kUnknown}, {2, 3}),
      "[fill_unknown] expected two shapes of the same rank, but got [?] and "
      "[2, 3]");
}

}  // namespace tessera::test::partial_shape_test
