// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/cross.h>
#include <tessera/layers/layer_json.h>

#include "tests/layers/autocast.h"
#include "tests/layers/gradient_check.h"
#include "tests/test_util.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace tessera {
namespace cross_test {

TEST(CrossTest, GradientsMatchFiniteDifferences) {
  for (const std::optional<int64_t> projection_dim :
       {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    for (const double diag_scale : {0.0, 0.5}) {
      for (const bool use_bias : {false, true}) {
        for (const auto activation : {Activation::kLinear, Activation::kTanh}) {
          Cross layer(CrossOptions{
              .projection_dim = projection_dim,
              .diag_scale = diag_scale,
              .use_bias = use_bias,
              .preactivation = activation,
              .kernel_initializer = initializers::Normal{.stddev = 1.0},
              .bias_initializer = initializers::Normal{.stddev = 1.0}});
          const at::Tensor x0 = at::randn({3, 4}, at::kDouble).requires_grad_();
          const at::Tensor x = at::randn({3, 4}, at::kDouble).requires_grad_();
          layer->forward(x0);  // makes parameters of the dtype of x0
          std::vector<at::Tensor> sources = layer->parameters();
          sources.push_back(x0);
          test::expect_gradients([&] { return layer->forward(x0); }, sources);
          sources.push_back(x);
          test::expect_gradients(
              [&] { return layer->forward(x0, x); }, sources);
        }
      }
    }
  }
}

TEST(CrossTest, ADeviceThatLibTorchLacksIsRefused) {
  Cross layer;
  for (const bool is_built : {false, true}) {
    if (is_built) {
      layer->build(PartialShape{std::nullopt, 2});
    }
    EXPECT_VALUE_ERROR(
        layer->to(torch::kXLA),
        "[Cross::to] the layer must go to a device that LibTorch can use, but "
        "got xla: ");
    EXPECT_VALUE_ERROR(
        layer->clone(torch::Device(torch::kXLA)),
        "[Cross::clone] the layer must go to a device that LibTorch can use, "
        "but got xla: ");
  }
  EXPECT_TRUE(layer->parameters()[0].is_cpu());
}

TEST(CrossTest, BuildOrTheFirstForwardMakesParameters) {
  Cross full;
  EXPECT_EQ(full->parameters()[0].numel(), 0);
  full->build(PartialShape{std::nullopt, 5});
  const auto names = [](const Cross& layer) {
    return layer->named_parameters().keys();
  };
  EXPECT_EQ(names(full), (std::vector<std::string>{"kernel", "bias"}));
  EXPECT_EQ(full->parameters()[0].sizes(), (std::vector<int64_t>{5, 5}));

  Cross low_rank(CrossOptions{.projection_dim = 2, .use_bias = false});
  low_rank->forward(at::randn({3, 5}));
  EXPECT_EQ(
      names(low_rank), (std::vector<std::string>{"kernel_u", "kernel_v"}));
  EXPECT_EQ(low_rank->parameters()[0].sizes(), (std::vector<int64_t>{5, 2}));
  EXPECT_EQ(low_rank->parameters()[1].sizes(), (std::vector<int64_t>{2, 5}));
}

TEST(CrossTest, KernelsStartAsTheTruncatedNormalOfKeras) {
  torch::manual_seed(3);
  Cross layer;
  layer->build(PartialShape{std::nullopt, 100});
  const at::Tensor kernel = layer->parameters()[0];
  EXPECT_TRUE(kernel.requires_grad());
  EXPECT_LE(kernel.abs().max().item<double>(), 0.1 + 1e-6);
  EXPECT_NEAR(kernel.mean().item<double>(), 0.0, 0.002);
  EXPECT_NEAR(kernel.std().item<double>(), 0.05 * 0.8796, 0.002);
  EXPECT_EQ(layer->parameters()[1].abs().max().item<float>(), 0.0F);

  // Kernels depend on torch::manual_seed(), and two layers differ.
  Cross second;
  second->build(PartialShape{std::nullopt, 100});
  EXPECT_FALSE(at::equal(second->parameters()[0], kernel));
  torch::manual_seed(3);
  Cross same_seed;
  same_seed->build(PartialShape{std::nullopt, 100});
  EXPECT_TRUE(at::equal(same_seed->parameters()[0], kernel));
}

TEST(CrossTest, ACloneHasEqualParametersOfItsOwn) {
  for (const std::optional<int64_t> projection_dim :
       {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    Cross layer(CrossOptions{.projection_dim = projection_dim});
    const at::Tensor x = at::randn({2, 4});
    const at::Tensor expected = layer->forward(x).detach().clone();
    Cross copy(std::dynamic_pointer_cast<CrossImpl>(layer->clone()));
    EXPECT_TRUE(at::equal(copy->forward(x), expected));
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : copy->parameters()) {
      parameter.fill_(1);
    }
    EXPECT_FALSE(at::equal(copy->forward(x), expected));
    EXPECT_TRUE(at::equal(layer->forward(x), expected));
  }
}

TEST(CrossTest, ComputesItsOutputShape) {
  Cross layer;
  EXPECT_EQ(
      layer->compute_output_shape(PartialShape{std::nullopt, 4}).leaf(),
      (PartialShape{std::nullopt, 4}));
  EXPECT_EQ(
      layer->compute_output_shape(PartialShape{2, 3, std::nullopt}).leaf(),
      (PartialShape{2, 3, std::nullopt}));
  EXPECT_VALUE_ERROR(
      layer->build(PartialShape{2, std::nullopt}),
      "[Cross] needs the size of the last dimension to make its parameters, but "
      "got [2, ?]. Build the layer with that size");
  EXPECT_VALUE_ERROR(
      layer->build(PartialShape{4}), "of rank 2 or more, but got [4]");
  EXPECT_VALUE_ERROR(
      layer->build(PartialShape{4, 0}), "must be >= 1, but got [4, 0]");
  EXPECT_VALUE_ERROR(
      layer->build({{"a", PartialShape{4, 1}}, {"b", PartialShape{3, 1}}}),
      "[Cross 'b'] all inputs must have the same batch size or one row");
  EXPECT_EQ(layer->parameters()[0].numel(), 0);
}

TEST(CrossTest, RefusesOptions) {
  EXPECT_VALUE_ERROR(
      Cross(CrossOptions{.projection_dim = 0}),
      "[Cross] projection_dim must be >= 1, but got 0. Leave it unset for the "
      "full matrix.");
  EXPECT_VALUE_ERROR(
      Cross(CrossOptions{.diag_scale = -0.1}),
      "[Cross] diag_scale must be >= 0 and finite, but got -0.1");
  EXPECT_VALUE_ERROR(
      Cross(CrossOptions{.diag_scale = std::nan("")}), "diag_scale");
  EXPECT_VALUE_ERROR(
      Cross(CrossOptions{
          .kernel_initializer = initializers::Normal{.stddev = -1}}),
      "[Cross kernel] initializer: stddev must be >= 0");
  EXPECT_VALUE_ERROR(
      Cross(CrossOptions{
          .bias_initializer = initializers::Constant{.value = INFINITY}}),
      "[Cross bias] initializer");
}

TEST(CrossTest, RefusesInputs) {
  Cross layer;
  EXPECT_VALUE_ERROR(
      layer->forward(at::randn({2, 3}), at::randn({2, 4})),
      "[Cross] x0 and x must have the same shape, but got [2, 3] and [2, 4]");
  EXPECT_VALUE_ERROR(
      layer->forward(at::randn({1, 3}), at::randn({2, 3})), "same shape");
  EXPECT_VALUE_ERROR(
      layer->forward(at::Tensor()),
      "[Cross] input: expected a tensor, but got an undefined tensor. Pass a "
      "batch.");
  EXPECT_VALUE_ERROR(layer->forward(at::randn({3})), "of rank 2 or more");
  EXPECT_VALUE_ERROR(layer->forward(at::randn({})), "but got []");
  EXPECT_TYPE_ERROR(
      layer->forward(at::ones({2, 3}, at::kLong)),
      "[Cross] input: expected a dense floating-point tensor, but got Strided "
      "Long");
  EXPECT_EQ(layer->parameters()[0].numel(), 0);

  layer->forward(at::randn({2, 3}));
  EXPECT_VALUE_ERROR(
      layer->forward(at::randn({2, 4})),
      "[Cross] was built for inputs [batch, ..., 3], but got [2, 4]");
  EXPECT_VALUE_ERROR(layer->forward(at::randn({3})), "but got [3]");
  EXPECT_TYPE_ERROR(
      layer->forward(at::randn({2, 3}, at::kDouble)),
      "[Cross] has parameters of Float, but got inputs of Double");
  EXPECT_TYPE_ERROR(
      layer->forward(at::randn({2, 3}), at::randn({2, 3}, at::kDouble)),
      "but got inputs of Double");
}

TEST(CrossTest, MixedInputsBuildTheLayerInTheirPromotedDtype) {
  const at::Tensor a = at::randn({3, 2});
  const at::Tensor b = at::randn({3, 4}).to(at::kBFloat16);
  const test::Autocast autocast;
  for (const Nest<at::Tensor>& inputs :
       {Nest<at::Tensor>{a, b}, Nest<at::Tensor>{b, a}}) {
    Cross layer;
    const at::Tensor result = layer->forward(inputs);
    for (const at::Tensor& parameter : layer->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    }
    const auto leaves = inputs.flatten();
    const at::Tensor all =
        at::cat({leaves[0].to(at::kFloat), leaves[1].to(at::kFloat)}, 1);
    EXPECT_TRUE(at::equal(layer->forward(all), result));
  }
}

TEST(CrossTest, OptionsRoundTripThroughJson) {
  const CrossOptions options{
      .projection_dim = 3,
      .diag_scale = 0.25,
      .use_bias = false,
      .preactivation = Activation::kRelu,
      .kernel_initializer = initializers::Uniform{.low = -1, .high = 1},
      .bias_initializer = initializers::Constant{.value = 2}};
  const Json json = Cross(options)->get_config();
  EXPECT_EQ(json.at("projection_dim"), 3);
  EXPECT_EQ(json.at("preactivation"), "relu");
  EXPECT_EQ(JsonValue<CrossOptions>::read(json, "x"), options);
  EXPECT_EQ(
      JsonValue<CrossOptions>::read(Cross()->get_config(), "x"),
      CrossOptions());
}

}  // namespace cross_test
}  // namespace tessera
