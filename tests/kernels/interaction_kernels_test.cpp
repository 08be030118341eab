// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace tessera::kernels {
namespace interaction_kernels_test {

constexpr int64_t kBatch = 5;
constexpr float kUntouched = -77.0F;

// What is not symmetric in features, examples and columns.
std::vector<float> numbers(int64_t count, double step) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(std::sin(step * static_cast<double>(i + 1)));
  }
  return values;
}

// Features [features, batch, dim] and the dots of examples 1 to 3, each in the
// instruction sets of this machine.
template <class Check>
void for_each_case(Check check) {
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (const bool with_self : {false, true}) {
      for (const int64_t count : {1, 2, 3, 8, 17, 33, 40}) {
        for (const int64_t dim : {1, 3, 4, 16, 21}) {
          SCOPED_TRACE(testing::Message() << count << " features of " << dim);
          const std::vector<float> x = numbers(count * kBatch * dim, 0.7);
          std::vector<FeatureRows<const float>> features;
          for (int64_t i = 0; i < count; ++i) {
            features.push_back({x.data() + i * kBatch * dim, dim});
          }
          check(
              kernels,
              PairwiseDotsArgs{
                  .features = features.data(),
                  .num_features = count,
                  .dim = dim,
                  .with_self = with_self,
                  .begin_example = 1,
                  .end_example = 4});
          if (testing::Test::HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

double at(const PairwiseDotsArgs& args, int64_t b, int64_t i, int64_t column) {
  return args.features[i].first[b * args.features[i].stride + column];
}

int64_t pairs_of(const PairwiseDotsArgs& args) {
  return args.num_features * (args.num_features + (args.with_self ? 1 : -1)) /
      2;
}

TEST(InteractionKernelsTest, DotsAreThoseOfEachPair) {
  for_each_case([](const KernelTable& kernels, PairwiseDotsArgs args) {
    const int64_t pairs = pairs_of(args);
    std::vector<float> dots(static_cast<size_t>(kBatch * pairs), kUntouched);
    args.dots = dots.data();
    kernels.pairwise_dots(args);
    size_t next = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      const bool is_asked = b >= args.begin_example && b < args.end_example;
      for (int64_t i = 0; i < args.num_features; ++i) {
        for (int64_t j = 0; j < i + (args.with_self ? 1 : 0); ++j) {
          double expected = 0.0;
          for (int64_t column = 0; column < args.dim; ++column) {
            expected += at(args, b, i, column) * at(args, b, j, column);
          }
          ASSERT_NEAR(dots[next++], is_asked ? expected : kUntouched, 1e-5)
              << "example " << b << ", features " << i << " and " << j;
        }
      }
    }
  });
}

TEST(InteractionKernelsTest, GradientsAreThoseOfEachPair) {
  for_each_case([](const KernelTable& kernels, PairwiseDotsArgs args) {
    const int64_t count = args.num_features;
    const int64_t stride = pairs_of(args) + 2;
    const std::vector<float> given = numbers(kBatch * stride, 0.3);
    args.dots_gradient = {given.data(), stride};
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
      const float* gradient = given.data() + b * stride;
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
            sum(i, column) += gradient[pair] * at(args, b, j, column);
            sum(j, column) += gradient[pair] * at(args, b, i, column);
          }
        }
      }
    }
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], expected[i], 1e-5) << i;
    }
  });
}

TEST(InteractionKernelsTest, CrossesAreThoseOfEachColumn) {
  constexpr int64_t kRows = 3;
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (const bool has_bias : {false, true}) {
      for (const int64_t dim : {1, 3, 4, 16, 21, 64}) {
        SCOPED_TRACE(dim);
        const auto x0 = numbers(kRows * dim, 0.7);
        const auto x = numbers(kRows * dim, 0.3);
        const auto product = numbers(kRows * dim, 0.9);
        const auto gradient = numbers(kRows * dim, 1.1);
        const auto bias = numbers(dim, 0.2);
        std::vector<float> out(x0.size());
        const auto old = numbers(kRows * dim, 1.9);
        std::vector<float> of_x0 = old;
        std::vector<float> of_product(x0.size());
        std::vector<float> of_bias(static_cast<size_t>(dim), 2.0F);
        const CrossArgs args{
            .rows = kRows,
            .dim = dim,
            .x0 = x0.data(),
            .product = product.data(),
            .bias = has_bias ? bias.data() : nullptr,
            .x = x.data(),
            .out = out.data(),
            .gradient = gradient.data(),
            .x0_gradient = of_x0.data(),
            .product_gradient = of_product.data(),
            .bias_gradient = has_bias ? of_bias.data() : nullptr};
        kernels.cross(args);
        kernels.cross_gradient(args);
        std::vector<double> bias_sums(of_bias.size(), 2.0);
        for (size_t i = 0; i < x0.size(); ++i) {
          const size_t column = i % static_cast<size_t>(dim);
          const double factor =
              double{product[i]} + (has_bias ? bias[column] : 0.0F);
          ASSERT_NEAR(out[i], x0[i] * factor + x[i], 1e-5);
          ASSERT_NEAR(of_x0[i], old[i] + gradient[i] * factor, 1e-5);
          ASSERT_NEAR(of_product[i], double{gradient[i]} * x0[i], 1e-5);
          bias_sums[column] += has_bias ? double{gradient[i]} * x0[i] : 0.0;
        }
        for (size_t i = 0; i < of_bias.size(); ++i) {
          ASSERT_NEAR(of_bias[i], bias_sums[i], 1e-5);
        }
      }
    }
  }
}

}  // namespace interaction_kernels_test
}  // namespace tessera::kernels
