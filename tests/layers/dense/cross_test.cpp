// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/layer_json.h>

#include "tests/test_util.h"

namespace tessera::test::cross_test {

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
  EXPECT_TENSOR_EQ(same_seed->parameters()[0], kernel);
}

TEST(CrossTest, ComputesItsOutputShape) {
  Cross layer;
  const PartialShape unknown{2, 3, std::nullopt};
  EXPECT_EQ(layer->compute_output_shape(unknown).leaf(), unknown);
  expect_refusals<PartialShape>(
      {{{2, std::nullopt},
        "[Cross] needs the size of the last dimension to make its parameters, but "
        "got [2, ?]. Build the layer with that size"},
       {{4}, "of rank 2 or more, but got [4]"},
       {{4, 0}, "must be >= 1, but got [4, 0]"}},
      [&](const PartialShape& shape) { layer->build(shape); });
  EXPECT_EQ(layer->parameters()[0].numel(), 0);
}

TEST(CrossTest, RefusesOptions) {
  expect_refusals<CrossOptions>(
      {{{.projection_dim = 0},
        "[Cross] projection_dim must be >= 1, but got 0. Leave it unset for the "
        "full matrix."},
       {{.diag_scale = -0.1},
        "[Cross] diag_scale must be >= 0 and finite, but got -0.1"},
       {{.diag_scale = std::nan("")}, "diag_scale"},
       {{.kernel_initializer = initializers::Normal{.stddev = -1}},
        "[Cross kernel] initializer: stddev must be >= 0"},
       {{.bias_initializer = initializers::Constant{.value = INFINITY}},
        "[Cross bias] initializer"}},
      [](const CrossOptions& options) { Cross layer(options); });
}

TEST(CrossTest, RefusesTwoInputsThatDiffer) {
  Cross layer;
  using Pair = std::pair<at::Tensor, at::Tensor>;
  expect_refusals<Pair>(
      {{{at::randn({2, 3}), at::randn({2, 4})},
        "[Cross] x0 and x must have the same shape, but got [2, 3] and [2, 4]"},
       {{at::randn({1, 3}), at::randn({2, 3})}, "same shape"}},
      [&](const Pair& pair) { layer->forward(pair.first, pair.second); });
  layer->forward(at::randn({2, 3}));
  EXPECT_VALUE_ERROR(
      layer->forward(at::randn({2, 4})),
      "[Cross] was built for inputs [batch, ..., 3], but got [2, 4]");
  EXPECT_VALUE_ERROR(layer->forward(at::randn({3})), "but got [3]");
  EXPECT_TYPE_ERROR(
      layer->forward(at::randn({2, 3}), at::randn({2, 3}, at::kDouble)),
      "but got inputs of Double");
}

TEST(CrossTest, OptionsHaveTheNamesOfKerasInJson) {
  const Json json =
      Cross(
          CrossOptions{.projection_dim = 3, .preactivation = Activation::kRelu})
          ->get_config();
  EXPECT_EQ(json.at("projection_dim"), 3);
  EXPECT_EQ(json.at("preactivation"), "relu");
}

}  // namespace tessera::test::cross_test
