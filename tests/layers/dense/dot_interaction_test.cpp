// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/layer_json.h>

#include "tests/layers/autocast.h"
#include "tests/layers/gradient_check.h"

namespace tessera::test::dot_interaction_test {

constexpr DotInteractionOptions kEveryOption[] = {
    {},
    {.self_interaction = true},
    {.skip_gather = true},
    {.self_interaction = true, .skip_gather = true}};

Nest<at::Tensor> list_of(const std::vector<at::Tensor>& tensors) {
  return Nest<at::Tensor>::list({tensors.begin(), tensors.end()});
}

std::vector<at::Tensor> doubles(int64_t count, at::IntArrayRef shape) {
  std::vector<at::Tensor> tensors;
  for (int64_t i = 0; i < count; ++i) {
    tensors.push_back(at::randn(shape, at::kDouble).requires_grad_());
  }
  return tensors;
}

TEST(DotInteractionTest, PairsAreTheLowerTriangleRowByRow) {
  // All dot products of 1, 10 and 100 differ, apart from 10 * 10 and 1 * 100.
  const Nest<at::Tensor> features{
      {"a", floats({1}).view({1, 1})},
      {"b", floats({10}).view({1, 1})},
      {"c", floats({100}).view({1, 1})}};
  const auto run = [&](const DotInteractionOptions& options) {
    return DotInteraction(options)->forward(features).view({-1});
  };
  expect_close(run({}), floats({10, 100, 1000}));
  expect_close(
      run({.self_interaction = true}), floats({1, 10, 100, 100, 1000, 10000}));
  expect_close(
      run({.skip_gather = true}), floats({0, 0, 0, 10, 0, 0, 100, 1000, 0}));
  expect_close(
      run({.self_interaction = true, .skip_gather = true}),
      floats({1, 0, 0, 10, 100, 0, 100, 1000, 10000}));
}

TEST(DotInteractionTest, OneTensorOfFeaturesGivesTheSameAsAList) {
  for (const DotInteractionOptions& options : kEveryOption) {
    const std::vector<at::Tensor> parts = doubles(4, {3, 5});
    DotInteraction layer(options);
    const at::Tensor expected = layer->forward(list_of(parts));
    EXPECT_TENSOR_EQ(
        DotInteraction(options)->forward(at::stack(parts, 1)), expected);
    const at::Tensor last_three = at::stack({parts[1], parts[2], parts[3]}, 1);
    EXPECT_TENSOR_EQ(
        layer->forward({{"bottom", parts[0]}, {"history", last_three}}),
        expected);
  }
}

TEST(DotInteractionTest, OneFeatureMayBeGivenTwice) {
  for (const DotInteractionOptions& options : kEveryOption) {
    const at::Tensor x = doubles(1, {4, 3, 2})[0];
    expect_gradients(
        [&] {
          const at::Tensor features = x.transpose(0, 1);  // not contiguous
          return DotInteraction(options)->forward(
              {{"a", features}, {"b", features}});
        },
        {x});
  }
}

// Kernels compute float32, and LibTorch's operators compute doubles.
TEST(DotInteractionTest, Float32MatchesDoubles) {
  for (const DotInteractionOptions& options : kEveryOption) {
    for (const int64_t dim : {1, 5, 16, 40}) {
      SCOPED_TRACE(dim);
      // A matrix, a slice of one, features with other strides, an expanded row.
      const std::vector<at::Tensor> leaves{
          at::randn({70, dim}, at::kDouble),
          at::randn({70, 3 * dim}, at::kDouble).narrow(1, dim, dim),
          at::randn({70, dim, 9}, at::kDouble).transpose(1, 2),
          at::randn({70, 8, dim}, at::kDouble).slice(1, 0, 8, 3),
          at::randn({1, dim}, at::kDouble).expand({70, dim})};
      const auto run = [&](at::ScalarType dtype) {
        std::vector<at::Tensor> inputs;
        for (const at::Tensor& leaf : leaves) {
          inputs.push_back(leaf.to(dtype).detach().requires_grad_());
        }
        const at::Tensor dots =
            DotInteraction(options)->forward(list_of(inputs));
        dots.mul(dots.detach().sin()).sum().backward();
        std::vector<at::Tensor> results{dots};
        for (const at::Tensor& input : inputs) {
          results.push_back(input.grad());
        }
        return results;
      };
      const auto results = run(at::kFloat);
      const auto expected = run(at::kDouble);
      for (size_t i = 0; i < results.size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_TRUE(at::allclose(
            results[i].to(at::kDouble), expected[i], 1e-4, 1e-4 * dim));
      }
    }
  }
}

TEST(DotInteractionTest, OneFeatureHasNoPairsAndNoGradient) {
  const at::Tensor x = floats({1, INFINITY}).view({2, 1}).requires_grad_();
  const at::Tensor dots = DotInteraction()->forward(x);
  EXPECT_EQ(dots.sizes(), (std::vector<int64_t>{2, 0}));
  dots.sum().backward();
  expect_close(x.grad(), floats({0, 0}).view({2, 1}));
}

TEST(DotInteractionTest, TakesInferenceTensorsBesideOthers) {
  at::Tensor frozen;
  {
    const c10::InferenceMode guard;
    frozen = at::randn({3, 2});
  }
  const at::Tensor x = at::randn({3, 2}).requires_grad_();
  DotInteraction()->forward({{"a", frozen}, {"b", x}}).sum().backward();
  EXPECT_TENSOR_EQ(x.grad(), frozen);
}

TEST(DotInteractionTest, TakesAGradientOfAnyStrides) {
  const at::Tensor x = at::randn({3, 4, 2}).requires_grad_();
  const at::Tensor gradient = at::randn({3, 6});
  const auto run = [&](const at::Tensor& output_gradient) {
    return torch::autograd::grad(
        {DotInteraction()->forward(x)}, {x}, {output_gradient})[0];
  };
  const at::Tensor expected = run(gradient);
  EXPECT_TENSOR_EQ(run(gradient.t().contiguous().t()), expected);
  EXPECT_TENSOR_EQ(
      run(at::cat({gradient, gradient}, 1).narrow(1, 6, 6)), expected);
  expect_close(run(at::ones({1, 1}).expand({3, 6})), run(at::ones({3, 6})));
}

// Both the kernels and the operators keep float32 under autocast.
TEST(DotInteractionTest, AutocastHasNoEffect) {
  for (const bool skip_gather : {false, true}) {
    DotInteraction layer(DotInteractionOptions{.skip_gather = skip_gather});
    const at::Tensor x = at::randn({3, 4, 5}).requires_grad_();
    const at::Tensor expected = layer->forward(x);
    const auto gradient = [&](const at::Tensor& output) {
      x.mutable_grad() = at::Tensor();
      output.square().sum().backward();
      return x.grad();
    };
    const at::Tensor expected_gradient = gradient(expected);
    const Autocast autocast;
    const at::Tensor result = layer->forward(x);
    const at::Tensor result_gradient = gradient(result);
    EXPECT_EQ(result.scalar_type(), at::kFloat);
    EXPECT_TENSOR_EQ(result, expected);
    EXPECT_TENSOR_EQ(result_gradient, expected_gradient);
  }
}

TEST(DotInteractionTest, TakesAnyBatchAndNumberOfFeatures) {
  DotInteraction layer;
  EXPECT_EQ(
      layer->forward(at::randn({0, 3, 4})).sizes(),
      (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(
      layer->forward(at::randn({1, 3, 4})).sizes(),
      (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(
      layer->forward(at::randn({2, 4, 4})).sizes(),
      (std::vector<int64_t>{2, 6}));
  const at::Tensor empty = at::randn({0, 3, 4}).requires_grad_();
  layer->forward(empty).sum().backward();
  EXPECT_EQ(empty.grad().sizes(), empty.sizes());
}

TEST(DotInteractionTest, TheUpperTriangleIsZeroForInfiniteProducts) {
  const at::Tensor x = floats({0, INFINITY, 1, 1}).view({1, 2, 2});
  const at::Tensor matrix =
      DotInteraction(DotInteractionOptions{.skip_gather = true})->forward(x);
  expect_close(matrix, floats({0, 0, INFINITY, 0}).view({1, 4}));
}

TEST(DotInteractionTest, ComputesItsOutputShape) {
  const PartialShape feature{std::nullopt, 8};
  const auto width = [](const DotInteractionOptions& options,
                        const Nest<PartialShape>& shapes) {
    return DotInteraction(options)->compute_output_shape(shapes).leaf();
  };
  const Nest<PartialShape> four{
      {"a", feature}, {"b", PartialShape{7, 3, std::nullopt}}};
  EXPECT_EQ(width({}, four), (PartialShape{7, 6}));
  EXPECT_EQ(width({.self_interaction = true}, four), (PartialShape{7, 10}));
  EXPECT_EQ(width({.skip_gather = true}, four), (PartialShape{7, 16}));
  EXPECT_EQ(
      width({}, PartialShape{5, std::nullopt, 8}),
      (PartialShape{5, std::nullopt}));
  DotInteraction layer;
  layer->build(PartialShape{5, std::nullopt, 8});
  EXPECT_EQ(
      layer->forward(at::ones({5, 3, 8})).sizes(),
      (std::vector<int64_t>{5, 3}));
}

TEST(DotInteractionTest, RefusesFeaturesThatItCannotMultiply) {
  expect_refusals<Nest<at::Tensor>>(
      {{at::randn({2, 0, 3}),
        "[DotInteraction] expected one feature or more, but got none. Pass at "
        "least one."},
       {{{"a", at::randn({2, 3})}, {"b", at::randn({2, 4})}},
        "[DotInteraction 'b'] all features must have the same dim, but this one "
        "has 4 and an earlier one 3"},
       {at::randn({3}),
        "expected a feature [batch, dim] or features [batch, n, dim], but got [3]"},
       {at::randn({1, 2, 3, 4}), "but got [1, 2"}},
      [](const Nest<at::Tensor>& inputs) {
        DotInteraction()->forward(inputs);
      });
}

}  // namespace tessera::test::dot_interaction_test
