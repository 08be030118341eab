// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/initializer.h>

#include "tests/test_util.h"

#include <string_view>

namespace tessera::test::initializer_test {

namespace init = initializers;

constexpr uint64_t kSeed = 42;

at::Tensor filled(
    const Initializer& initializer,
    int64_t rows,
    int64_t dim,
    uint64_t seed = kSeed,
    std::string_view name = "users",
    int64_t first_row = 0) {
  at::Tensor values = at::full({rows, dim}, -7.0, at::kFloat);
  initialize_rows(initializer, seed, name, first_row, values);
  return values;
}

const std::vector<Initializer>& random_initializers() {
  static const std::vector<Initializer> all{
      init::Uniform{}, init::Normal{}, init::TruncatedNormal{}};
  return all;
}

// A sorted sample of a million values.
std::vector<double> sorted_sample(const Initializer& initializer) {
  const at::Tensor values = filled(initializer, 10'000, 100);
  const float* data = values.const_data_ptr<float>();
  std::vector<double> sample(data, data + values.numel());
  std::sort(sample.begin(), sample.end());
  return sample;
}

// The mean of (x - center)^power.
double moment(const std::vector<double>& sample, double center, int power) {
  double sum = 0.0;
  for (const double x : sample) {
    sum += std::pow(x - center, power);
  }
  return sum / static_cast<double>(sample.size());
}

double quantile(const std::vector<double>& sorted, double p) {
  return sorted[static_cast<size_t>(p * static_cast<double>(sorted.size()))];
}

// The largest distance between the sample's distribution function and `cdf`.
double kolmogorov_smirnov(
    const std::vector<double>& sorted,
    const std::function<double(double)>& cdf) {
  const auto count = static_cast<double>(sorted.size());
  double distance = 0.0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double p = cdf(sorted[i]);
    distance = std::max(distance, p - static_cast<double>(i) / count);
    distance = std::max(distance, static_cast<double>(i + 1) / count - p);
  }
  return distance;
}

// A sample from the correct distribution exceeds this distance once in a thousand times.
constexpr double kSmirnovLimit = 1.95 / 1000.0;

double normal_cdf(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

TEST(InitializerTest, RowsDoNotDependOnTheSplitIntoParts) {
  for (const Initializer& initializer : random_initializers()) {
    const at::Tensor whole = filled(initializer, 3000, 7);
    const at::Tensor parts = at::empty({3000, 7}, at::kFloat);
    initialize_rows(initializer, kSeed, "users", 0, parts.slice(0, 0, 1111));
    initialize_rows(
        initializer, kSeed, "users", 1111, parts.slice(0, 1111, 3000));
    EXPECT_TENSOR_EQ(parts, whole);
  }
}

TEST(InitializerTest, ThreadsDoNotChangeTheValues) {
  const auto with = [](int threads, const Initializer& initializer) {
    const Threads guard(threads);
    return filled(initializer, 5000, 16);
  };
  for (const Initializer& initializer : random_initializers()) {
    EXPECT_TENSOR_EQ(with(1, initializer), with(2, initializer));
  }
}

TEST(InitializerTest, ValuesDependOnSeedNameRowAndColumn) {
  for (const Initializer& initializer : random_initializers()) {
    const at::Tensor values = filled(initializer, 50, 40);
    EXPECT_TENSOR_EQ(values, filled(initializer, 50, 40));
    EXPECT_FALSE(at::equal(values, filled(initializer, 50, 40, kSeed + 1)));
    EXPECT_FALSE(
        at::equal(values, filled(initializer, 50, 40, kSeed, "movies")));
    EXPECT_FALSE(
        at::equal(values, filled(initializer, 50, 40, kSeed, "users", 1)));
    // The 2000 values differ from each other, except for rare collisions.
    const float* data = values.const_data_ptr<float>();
    std::vector<float> sorted(data, data + values.numel());
    std::sort(sorted.begin(), sorted.end());
    EXPECT_GE(std::unique(sorted.begin(), sorted.end()) - sorted.begin(), 1990);
  }
}

TEST(InitializerTest, TheFirstColumnsDoNotDependOnTheWidth) {
  for (const Initializer& initializer : random_initializers()) {
    const at::Tensor wide = filled(initializer, 10, 9);
    EXPECT_TENSOR_EQ(
        filled(initializer, 10, 4), wide.slice(1, 0, 4).contiguous());
  }
}

TEST(InitializerTest, NeighboursAreNotCorrelated) {
  const at::Tensor values = filled(init::Normal{.stddev = 1.0}, 1000, 100);
  const float* x = values.const_data_ptr<float>();
  double with_next_column = 0.0;
  double with_next_row = 0.0;
  for (int64_t i = 0; i + 100 < values.numel(); ++i) {
    with_next_column += x[i] * x[i + 1];
    with_next_row += x[i] * x[i + 100];
  }
  EXPECT_NEAR(with_next_column / 1e5, 0.0, 0.015);
  EXPECT_NEAR(with_next_row / 1e5, 0.0, 0.015);
}

TEST(InitializerTest, ZerosAndConstantFillEveryElement) {
  EXPECT_TENSOR_EQ(filled(init::Zeros{}, 3, 5), at::zeros({3, 5}, at::kFloat));
  EXPECT_TENSOR_EQ(
      filled(init::Constant{.value = 2.5}, 3, 5),
      at::full({3, 5}, 2.5, at::kFloat));
}

TEST(InitializerTest, UniformHasItsRangeMomentsAndDistribution) {
  const double low = -2.0;
  const double high = 6.0;
  const auto sample = sorted_sample(init::Uniform{.low = low, .high = high});
  EXPECT_GE(sample.front(), low);
  EXPECT_LT(sample.back(), high);
  EXPECT_NEAR(moment(sample, 0.0, 1), 2.0, 0.01);
  EXPECT_NEAR(moment(sample, 2.0, 2), 64.0 / 12.0, 0.02);
  EXPECT_LT(
      kolmogorov_smirnov(
          sample, [&](double x) { return (x - low) / (high - low); }),
      kSmirnovLimit);
}

TEST(InitializerTest, UniformNeverReachesItsUpperEnd) {
  // Few floats lie in this range, so rounding to the nearest would reach its end.
  const float low = 1.0F;
  const float high = std::nextafter(std::nextafter(low, 2.0F), 2.0F);
  const auto sample = sorted_sample(init::Uniform{.low = low, .high = high});
  EXPECT_GE(sample.front(), low);
  EXPECT_LT(sample.back(), high);
}

TEST(InitializerTest, NormalHasItsMomentsQuantilesAndDistribution) {
  const auto sample = sorted_sample(init::Normal{.mean = 1.0, .stddev = 2.0});
  const double variance = moment(sample, 1.0, 2);
  EXPECT_NEAR(moment(sample, 0.0, 1), 1.0, 0.008);
  EXPECT_NEAR(std::sqrt(variance), 2.0, 0.006);
  EXPECT_NEAR(moment(sample, 1.0, 3) / std::pow(variance, 1.5), 0.0, 0.01);
  EXPECT_NEAR(moment(sample, 1.0, 4) / (variance * variance), 3.0, 0.02);
  EXPECT_NEAR(quantile(sample, 0.001), 1.0 - 2.0 * 3.0902323, 0.05);
  EXPECT_NEAR(quantile(sample, 0.025), 1.0 - 2.0 * 1.9599640, 0.012);
  EXPECT_NEAR(quantile(sample, 0.25), 1.0 - 2.0 * 0.6744898, 0.01);
  EXPECT_NEAR(quantile(sample, 0.5), 1.0, 0.01);
  EXPECT_NEAR(quantile(sample, 0.75), 1.0 + 2.0 * 0.6744898, 0.01);
  EXPECT_NEAR(quantile(sample, 0.975), 1.0 + 2.0 * 1.9599640, 0.012);
  EXPECT_NEAR(quantile(sample, 0.999), 1.0 + 2.0 * 3.0902323, 0.05);
  EXPECT_LT(
      kolmogorov_smirnov(
          sample, [](double x) { return normal_cdf((x - 1.0) / 2.0); }),
      kSmirnovLimit);
}

TEST(InitializerTest, NormalHasTails) {
  // The expected extremes of a million values are +- 4.86.
  const auto sample = sorted_sample(init::Normal{.mean = 0.0, .stddev = 1.0});
  EXPECT_LT(sample.front(), -4.2);
  EXPECT_GT(sample.back(), 4.2);
  EXPECT_LT(std::max(-sample.front(), sample.back()), 6.4);
}

TEST(InitializerTest, TruncatedNormalStaysWithinTwoStandardDeviations) {
  const auto sample =
      sorted_sample(init::TruncatedNormal{.mean = 3.0, .stddev = 0.5});
  EXPECT_GE(sample.front(), 2.0);
  EXPECT_LE(sample.back(), 4.0);
  EXPECT_LT(sample.front(), 2.0002);
  EXPECT_GT(sample.back(), 3.9998);
  EXPECT_NEAR(moment(sample, 0.0, 1), 3.0, 0.002);
  EXPECT_NEAR(std::sqrt(moment(sample, 3.0, 2)), 0.5 * 0.87962566, 0.0015);
  const double cut = normal_cdf(-2.0);
  EXPECT_LT(
      kolmogorov_smirnov(
          sample,
          [&](double x) {
            return (normal_cdf((x - 3.0) / 0.5) - cut) / (1.0 - 2.0 * cut);
          }),
      kSmirnovLimit);
}

TEST(InitializerTest, AStandardDeviationOfZeroGivesTheMean) {
  const at::Tensor expected = at::full({4, 3}, 1.5, at::kFloat);
  EXPECT_TENSOR_EQ(
      filled(init::Normal{.mean = 1.5, .stddev = 0.0}, 4, 3), expected);
  EXPECT_TENSOR_EQ(
      filled(init::TruncatedNormal{.mean = 1.5, .stddev = 0.0}, 4, 3),
      expected);
}

TEST(InitializerTest, RowIdFillsEachRowWithItsNumber) {
  const at::Tensor values =
      filled(init::RowId{.offset = 5}, 3, 2, kSeed, "users", 10);
  EXPECT_TENSOR_EQ(values, floats({15, 15, 16, 16, 17, 17}).view({3, 2}));
}

TEST(InitializerTest, ACallableGetsTheRowsToFillAndTheirWidth) {
  const init::Callable squares(
      "squares", [](const at::Tensor& ids, int64_t dim) {
        EXPECT_EQ(ids.scalar_type(), at::kLong);
        return ids.mul(ids)
            .to(at::kFloat)
            .unsqueeze(1)
            .expand({ids.numel(), dim});
      });
  EXPECT_TENSOR_EQ(
      filled(squares, 2, 2, kSeed, "users", 3),
      floats({9, 9, 16, 16}).view({2, 2}));
}

TEST(InitializerTest, ACallableMayGiveRowsOfATrainedTensor) {
  const at::Tensor trained = at::ones({4, 2}, at::kFloat).requires_grad_(true);
  const init::Callable warm_start(
      "warm_start", [&](const at::Tensor& ids, int64_t) {
        return trained.index_select(0, ids);
      });
  const at::Tensor rows = filled(warm_start, 4, 2);
  EXPECT_FALSE(rows.requires_grad());
  EXPECT_TENSOR_EQ(rows, trained);
}

TEST(InitializerTest, ACallableMustGiveFiniteFloatsOfTheRightShape) {
  const auto fill_with = [](const at::Tensor& result) {
    filled(
        init::Callable(
            "mine", [&](const at::Tensor&, int64_t) { return result; }),
        3,
        2);
  };
  expect_refusals<at::Tensor>(
      {{at::zeros({3, 1}, at::kFloat),
        "[TableConfig 'users'] initializer must return a float32 tensor of shape "
        "[3, 2], but got Float of shape [3, 1]."},
       {at::zeros({3, 2}, at::kDouble), "but got Double of shape"},
       {at::Tensor(), "but got no tensor"},
       {at::full({3, 2}, NAN, at::kFloat),
        "initializer must return finite values, but returned values that are not "
        "finite"},
       {at::full({3, 2}, INFINITY, at::kFloat), "not finite"}},
      [&](const at::Tensor& x) { fill_with(x); });
}

TEST(InitializerTest, APlaceholderHasNoValues) {
  EXPECT_VALUE_ERROR(
      filled(init::Callable("mine", nullptr), 1, 1),
      "[TableConfig 'users'] initializer must have a function, but is only the name "
      "'mine' of a callable, as it was read from JSON. Replace it by Callable(\"mine\", function).");
  EXPECT_VALUE_ERROR(
      filled(init::Callable(), 1, 1), "only the name '' of a callable");
}

TEST(InitializerTest, TheErrorOfACallableReachesTheCaller) {
  const init::Callable failing(
      "failing", [](const at::Tensor&, int64_t) -> at::Tensor {
        TORCH_CHECK_INDEX(false, "from the callable");
      });
  EXPECT_INDEX_ERROR(filled(failing, 1, 1), "from the callable");
}

TEST(InitializerTest, FillsATableWithoutRows) {
  for (const Initializer& initializer : random_initializers()) {
    EXPECT_EQ(filled(initializer, 0, 3).numel(), 0);
  }
}

TEST(InitializerTest, ComparesByValueAndCallablesByIdentity) {
  EXPECT_EQ(Initializer(init::Normal{}), Initializer(init::Normal{}));
  EXPECT_NE(Initializer(init::Normal{}), Initializer(init::TruncatedNormal{}));
  EXPECT_NE(
      Initializer(init::Normal{}), Initializer(init::Normal{.mean = 1.0}));
  const auto ones = [](const at::Tensor& ids, int64_t dim) {
    return at::ones({ids.numel(), dim});
  };
  const init::Callable callable("ones", ones);
  EXPECT_EQ(callable, init::Callable(callable));
  EXPECT_NE(callable, init::Callable("ones", ones));
}

TEST(InitializerTest, ValidateRefusesUnusableValues) {
  const std::string where = "[TableConfig 'users']";
  expect_refusals<Initializer>(
      {{init::Constant{.value = NAN},
        "[TableConfig 'users'] initializer: value must be finite in float32, but got nan"},
       {init::Uniform{.low = -INFINITY},
        "low must be finite in float32, but got -inf"},
       {(init::Uniform{.low = 1.0, .high = 0.5}),
        "high must be finite in float32 and >= low, but got 0.5"},
       {init::Normal{.mean = NAN}, "mean must be finite"},
       {init::TruncatedNormal{.stddev = -0.1},
        "stddev must be >= 0, and mean +- 7 stddev must be finite in float32, but "
        "got -0.1"},
       {init::Normal{.stddev = NAN}, "stddev must be >= 0"}},
      [&](const Initializer& x) { validate(x, where); });
}

}  // namespace tessera::test::initializer_test
