// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/kernels.h"
#include "tests/kernels/random_bits_reference.h"
#include "tests/test_util.h"

namespace tessera::kernels::random_kernels_test {

constexpr uint64_t kKey = 77;
constexpr int64_t kFirstRow = int64_t{1} << 33;

// The upper 24 bits choose one of 2^24 equal parts of [0, 1). This is its
// centre.
double expected_uniform(int64_t row, int64_t column) {
  const uint32_t bits =
      random_bits(kKey, row, static_cast<uint32_t>(column)) >> 8;
  return (bits + 0.5) / 16777216.0;
}

double normal_cdf(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

template <class Check>
void for_each_value(RandomArgs args, Check check) {
  constexpr int64_t kRows = 300;
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (const int64_t dim : {1, 3, 8, 21, 64}) {
      std::vector<float> out(kRows * dim, -77.0F);
      args.key = kKey;
      args.rows.first = kFirstRow;
      args.begin_row = 2;
      args.end_row = kRows;
      args.dim = dim;
      args.out = out.data();
      kernels.fill_random(args);
      for (int64_t i = 0; i < kRows * dim; ++i) {
        if (i < 2 * dim) {
          ASSERT_EQ(out[i], -77.0F) << "a row before begin_row";
        } else {
          check(expected_uniform(kFirstRow + i / dim, i % dim), out[i]);
        }
        if (testing::Test::HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST(RandomKernelsTest, UniformScalesTheBitsToTheRange) {
  for_each_value(
      {.is_uniform = true, .uniform_low = -1.0F, .uniform_last = 3.0F},
      [](double u, float value) { ASSERT_NEAR(value, 4.0 * u - 1.0, 1e-6); });
}

TEST(RandomKernelsTest, UniformSpansTheWholeRangeOfFloats) {
  for_each_value(
      {.is_uniform = true, .uniform_low = -3e38F, .uniform_last = 3e38F},
      [](double u, float value) {
        ASSERT_NEAR(value, 6e38 * (u - 0.5), 1e32);
      });
}

TEST(RandomKernelsTest, NormalIsTheQuantileOfTheBits) {
  for_each_value({.mean = 1.0F, .stddev = 2.0F}, [](double u, float value) {
    const double z = (value - 1.0) / 2.0;
    // Relative to the nearer tail, where the quantile is steep.
    ASSERT_NEAR(normal_cdf(z), u, 1e-5 * std::min(u, 1.0 - u)) << z;
  });
}

TEST(RandomKernelsTest, TruncationKeepsTheMiddleOfTheNormal) {
  constexpr float kMass = 0.95449973610364158F;
  for_each_value({.mass = kMass, .limit = 2.0F}, [](double u, float value) {
    ASSERT_LE(std::abs(value), 2.0F);
    ASSERT_NEAR(normal_cdf(value), 0.5 + kMass * (u - 0.5), 1e-6);
  });
}

TEST(RandomKernelsTest, RowsOfALargeTableAreDistinct) {
  constexpr int64_t kRows = 500'000;
  std::vector<float> out(kRows * 4);
  available_kernels().front().fill_random(
      {.is_uniform = true,
       .uniform_last = 1.0F,
       .key = kKey,
       .end_row = kRows,
       .dim = 4,
       .out = out.data()});
  std::set<std::pair<float, float>> seen;
  int64_t equal = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    equal += seen.emplace(out[4 * row], out[4 * row + 1]).second ? 0 : 1;
  }
  // There are 2^48 different pairs, so 0.0004 duplicates are expected. If only
  // 32 bits depended on the row, there would be 29.
  EXPECT_LE(equal, 1);
}

}  // namespace tessera::kernels::random_kernels_test
