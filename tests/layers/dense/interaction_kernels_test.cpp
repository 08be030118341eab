// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/kernels/dense_kernels.h"
#include "tests/test_util.h"

namespace tessera::kernels::interaction_kernels_test {

// The kernels compute up to 16 examples at once.
constexpr int64_t kBatch = 21;
constexpr float kUntouched = -77.0F;

struct Case {
  int64_t dim;
  int64_t constant;  // features
  int64_t begin;  // the first example
  int64_t end;
};

// Values without symmetry between features, examples and columns.
std::vector<float> sample_values(int64_t count, double step) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(std::sin(step * static_cast<double>(i + 1)));
  }
  return values;
}

// Calls `check` with features [count, batch, dim] and some examples, on every instruction set
// of this machine. In the last cases, the first features have the same row in all examples.
template <class Check>
void for_each_case(Check check) {
  for (const DenseKernelTable& kernels : available_dense_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (const bool with_self : {false, true}) {
      for (const int64_t count :
           {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 17, 27, 40}) {
        for (const auto& [dim, constant, begin, end] : std::vector<Case>{
                 {1, 0, 1, 20},
                 {3, 0, 1, 20},
                 {4, 0, 2, 21},
                 {16, 0, 1, 20},
                 {16, 0, 20, 21},
                 {21, 0, 0, 16},
                 {6, 5, 1, 20},
                 {6, 8, 1, 20},
                 {3, 40, 1, 20}}) {
          SCOPED_TRACE(
              testing::Message()
              << count << " features of " << dim << ", with self: " << with_self
              << ", constant: " << constant << ", examples " << begin << " to "
              << end - 1);
          const std::vector<float> x = sample_values(count * kBatch * dim, 0.7);
          std::vector<FeatureRows<const float>> features;
          for (int64_t i = 0; i < count; ++i) {
            features.push_back(
                {x.data() + i * kBatch * dim, i < constant ? 0 : dim});
          }
          check(
              kernels,
              PairwiseDotsArgs{
                  .features = features.data(),
                  .num_features = count,
                  .dim = dim,
                  .with_self = with_self,
                  .begin_example = begin,
                  .end_example = end});
          if (testing::Test::HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

double feature_value(
    const PairwiseDotsArgs& args,
    int64_t b,
    int64_t i,
    int64_t column) {
  return args.features[i].first[b * args.features[i].stride + column];
}

int64_t count_pairs(const PairwiseDotsArgs& args) {
  return args.num_features * (args.num_features + (args.with_self ? 1 : -1)) /
      2;
}

TEST(InteractionKernelsTest, ComputesTheDotOfEachPair) {
  for_each_case([](const DenseKernelTable& kernels, PairwiseDotsArgs args) {
    const int64_t pairs = count_pairs(args);
    std::vector<float> dots(static_cast<size_t>(kBatch * pairs), kUntouched);
    args.dots = dots.data();
    kernels.pairwise_dots(args);
    size_t next = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      const bool is_in_range = b >= args.begin_example && b < args.end_example;
      for (int64_t i = 0; i < args.num_features; ++i) {
        for (int64_t j = 0; j < i + (args.with_self ? 1 : 0); ++j) {
          double expected = 0.0;
          for (int64_t column = 0; column < args.dim; ++column) {
            expected += feature_value(args, b, i, column) *
                feature_value(args, b, j, column);
          }
          ASSERT_NEAR(dots[next++], is_in_range ? expected : kUntouched, 1e-5)
              << "example " << b << ", features " << i << " and " << j;
        }
      }
    }
  });
}

TEST(InteractionKernelsTest, SumsTheGradientsOfAllPairs) {
  for_each_case([](const DenseKernelTable& kernels, PairwiseDotsArgs args) {
    const int64_t count = args.num_features;
    const int64_t stride = count_pairs(args) + 2;
    const std::vector<float> dots_gradient_values =
        sample_values(kBatch * stride, 0.3);
    args.dots_gradient = {dots_gradient_values.data(), stride};
    const int64_t size = kBatch * args.dim;
    std::vector<float> out(static_cast<size_t>(count * size), kUntouched);
    std::vector<FeatureRows<float>> gradients;
    for (int64_t i = 0; i < count; ++i) {
      gradients.push_back({out.data() + i * size, args.dim});
    }
    args.gradients = gradients.data();
    kernels.pairwise_dots_gradient(args);

    std::vector<double> expected(out.size(), kUntouched);
    for (int64_t b = args.begin_example; b < args.end_example; ++b) {
      const float* gradient = dots_gradient_values.data() + b * stride;
      const auto sum = [&](int64_t i, int64_t column) -> double& {
        return expected[i * size + b * args.dim + column];
      };
      for (int64_t column = 0; column < args.dim; ++column) {
        for (int64_t i = 0; i < count; ++i) {
          sum(i, column) = 0.0;
        }
        int64_t pair = 0;
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t j = 0; j < i + (args.with_self ? 1 : 0); ++j, ++pair) {
            sum(i, column) +=
                gradient[pair] * feature_value(args, b, j, column);
            sum(j, column) +=
                gradient[pair] * feature_value(args, b, i, column);
          }
        }
      }
    }
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], expected[i], 1e-5) << i;
    }
  });
}

TEST(InteractionKernelsTest, ComputesTheGradientsOfACross) {
  constexpr int64_t kRows = 3;
  for (const DenseKernelTable& kernels : available_dense_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (const auto& [has_bias, adds] : std::vector<std::pair<bool, bool>>{
             {false, false}, {false, true}, {true, false}, {true, true}}) {
      for (const int64_t dim : {1, 3, 4, 16, 21, 64}) {
        SCOPED_TRACE(dim);
        const auto x0 = sample_values(kRows * dim, 0.7);
        const auto factor = sample_values(kRows * dim, 0.9);
        const auto gradient = sample_values(kRows * dim, 1.1);
        const auto initial = sample_values(kRows * dim, 1.9);
        const std::vector<float> unset(initial.size(), NAN);
        std::vector<float> x0_gradient = adds ? initial : unset;
        std::vector<float> factor_gradient = adds ? initial : unset;
        std::vector<float> x = gradient;
        std::vector<float> bias_gradient(static_cast<size_t>(dim), 2.0F);
        kernels.cross_gradient(
            {.rows = kRows,
             .dim = dim,
             .x0 = x0.data(),
             .factor = factor.data(),
             .gradient = x.data(),
             .adds = adds,
             .x0_gradient = x0_gradient.data(),
             .factor_gradient = factor_gradient.data(),
             .x = adds ? x.data() : nullptr,
             .bias_gradient = has_bias ? bias_gradient.data() : nullptr});
        std::vector<double> bias_sums(bias_gradient.size(), 2.0);
        for (size_t i = 0; i < x0.size(); ++i) {
          const double before = adds ? initial[i] : 0.0;
          const double of_factor = before + double{gradient[i]} * x0[i];
          ASSERT_NEAR(
              x0_gradient[i], before + gradient[i] * (1.0 + factor[i]), 1e-5);
          ASSERT_NEAR(factor_gradient[i], of_factor, 1e-5);
          ASSERT_NEAR(
              x[i], adds ? x0[i] * (1.0 + factor[i]) : gradient[i], 1e-5);
          bias_sums[i % static_cast<size_t>(dim)] += has_bias ? of_factor : 0.0;
        }
        for (size_t i = 0; i < bias_gradient.size(); ++i) {
          ASSERT_NEAR(bias_gradient[i], bias_sums[i], 1e-5);
        }
      }
    }
  }
}

}  // namespace tessera::kernels::interaction_kernels_test
