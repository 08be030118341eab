// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/statistics.h>

#include "packages/data/tests/column_builders.h"

namespace tessera::data::statistics_test {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Boundaries = std::vector<double>;

TEST(QuantileBoundariesTest, SplitNumbersIntoBinsOfOneSize) {
  std::vector<int64_t> values(1000);
  std::iota(values.begin(), values.end(), -500);
  std::shuffle(values.begin(), values.end(), std::mt19937_64(1));
  const Boundaries boundaries = quantile_boundaries(integers(values), 8);
  EXPECT_EQ(boundaries, (Boundaries{-375, -250, -125, 0, 125, 250, 375}));
  std::vector<int64_t> counts(8);
  for (const int64_t id : ids_of(
           transforms::Bucketize{
               .boundaries = boundaries, .missing = Missing::kError},
           {integers(values)})) {
    ++counts.at(id);
  }
  EXPECT_EQ(counts, std::vector<int64_t>(8, 125));
}

TEST(QuantileBoundariesTest, GiveEqualNumbersOneBin) {
  EXPECT_EQ(
      quantile_boundaries(integers({0, 0, 0, 0, 0, 0, 0, 0, 1, 2}), 4),
      (Boundaries{1}));
  EXPECT_EQ(
      quantile_boundaries(integers({1, 2, 5, 5, 5, 5, 5, 5, 8, 9}), 5),
      (Boundaries{5, 8}));
  EXPECT_EQ(quantile_boundaries(integers({3, 1, 2}), 100), (Boundaries{2, 3}));
}

TEST(QuantileBoundariesTest, LeaveOutMissingAndInfiniteNumbers) {
  EXPECT_EQ(
      quantile_boundaries(
          numbers({kNaN, 1.5F, kInfinity, -kInfinity, 2.5F, kNaN}), 2),
      (Boundaries{2.5}));
  EXPECT_EQ(
      quantile_boundaries(integers({kMissing, kMissing, 1, 2}), 2),
      (Boundaries{2}));
}

TEST(QuantileBoundariesTest, RefuseDataWithoutTwoNumbers) {
  EXPECT_VALUE_ERROR(
      quantile_boundaries(integers({1, 2}), 1), "num_bins must be >= 2");
  EXPECT_VALUE_ERROR(
      quantile_boundaries(integers({7, 7}), 2),
      "two different numbers or more, but got 2 equal ones");
  EXPECT_VALUE_ERROR(
      quantile_boundaries(integers({kMissing}), 2), "but got 0.");
  EXPECT_TYPE_ERROR(quantile_boundaries(text({"a"}), 2), "but got text");
}

TEST(NormalizeBuilderTest, GivesMeanAndVarianceInBatchesAndMerged) {
  NormalizeBuilder whole;
  whole.add(numbers({1e6F, 1e6F + 1, kNaN, 1e6F + 2, 1e6F + 3}));
  EXPECT_DOUBLE_EQ(whole.finish().mean, 1e6 + 1.5);
  EXPECT_DOUBLE_EQ(whole.finish().variance, 1.25);
  NormalizeBuilder first;
  NormalizeBuilder second;
  first.add(integers({1'000'000, kMissing, 1'000'003}));
  second.add(integers({1'000'001}));
  second.add(integers({}));
  second.add(integers({1'000'002}));
  first.merge(second);
  first.merge(NormalizeBuilder());
  EXPECT_EQ(first.finish(), whole.finish());
}

TEST(NormalizeBuilderTest, RefusesDataWithoutNumbers) {
  NormalizeBuilder builder;
  builder.add(integers({kMissing}));
  EXPECT_VALUE_ERROR(builder.finish(), "all were missing");
  EXPECT_VALUE_ERROR(builder.add(numbers({kInfinity})), "but got inf");
  EXPECT_TYPE_ERROR(builder.add(text({"a"})), "but got text");
}

}  // namespace tessera::data::statistics_test
