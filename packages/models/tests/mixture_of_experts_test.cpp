// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/mixture_of_experts.h>

#include "tests/test_util.h"

namespace tessera::test::mixture_of_experts_test {

using Sizes = std::vector<int64_t>;
MMoEOptions two_tasks() {
  return {
      .tasks = {"click", "buy"},
      .num_experts = 3,
      .expert_units = {6, 4},
      .tower_units = {5, 1}};
}

TEST(MMoETest, OutputsHaveTheNamesOfTheTasks) {
  MMoE layer(two_tasks());
  const at::Tensor x = at::randn({3, 7});
  const Nest<at::Tensor> outputs = layer->forward(x);
  EXPECT_EQ(outputs.paths(), (Texts{"click", "buy"}));
  EXPECT_EQ(outputs["buy"].sizes(), (Sizes{3, 1}));
  const auto shapes = layer->compute_output_shape(PartialShape{3, 7});
  EXPECT_EQ(shapes["click"], (PartialShape{3, 1}));
  // Several inputs are joined in the order of the nest.
  const Nest<at::Tensor> joined =
      layer->forward({{"a", x.narrow(1, 0, 2)}, {"b", x.narrow(1, 2, 5)}});
  EXPECT_TRUE(at::equal(joined["click"], outputs["click"]));
}

TEST(MMoETest, OneExpertIsAnMLPForEachTask) {
  MMoEOptions options = two_tasks();
  options.num_experts = 1;
  options.tower_units = {};
  MMoE layer(options);
  const at::Tensor x = at::randn({3, 7});
  const Nest<at::Tensor> outputs = layer->forward(x);
  MLP expert(
      MLPOptions{.units = {6, 4}, .final_activation = Activation::kRelu});
  expert->forward(x);
  const at::NoGradGuard no_grad;
  for (const auto& parameter : expert->named_parameters()) {
    parameter.value().copy_(
        layer->named_parameters()["expert_0." + parameter.key()]);
  }
  expect_close(outputs["click"], expert->forward(x));
  expect_close(outputs["buy"], expert->forward(x));
}

TEST(MMoETest, AcceptsNoExamples) {
  MMoE layer(two_tasks());
  EXPECT_EQ(layer->forward(at::ones({0, 7}))["buy"].sizes(), (Sizes{0, 1}));
}

TEST(MMoETest, RefusesOptionsOutOfRange) {
  using Change = std::function<void(MMoEOptions&)>;
  expect_refusals<Change>(
      {{[](auto& options) { options.tasks = {}; },
        "[MMoE] tasks must have 1 to 1024 names, but got 0"},
       {[](auto& options) {
          options.tasks = Texts{"a", ""};
        },
        "[MMoE] tasks must be different names that are not empty, but got ''"},
       {[](auto& options) {
          options.tasks = Texts{"a", "a"};
        },
        "but got 'a' twice"},
       {[](auto& options) { options.num_experts = 0; },
        "[MMoE] num_experts must be in [1, 1024], but got 0"},
       {[](auto& options) { options.expert_units = {}; },
        "[MMoE] expert_units must have one size or more, but got none"},
       {[](auto& options) {
          options.expert_units = Sizes{4, 0};
        },
        "[MMoE] expert_units[1] must be >= 1, but got 0"},
       {[](auto& options) { options.tower_units = {-1}; },
        "[MMoE] tower_units[0] must be >= 1, but got -1"}},
      [](const Change& change) {
        MMoEOptions options = two_tasks();
        change(options);
        MMoE layer(options);
      });
}

TEST(MMoETest, RefusesBadInput) {
  MMoE layer(two_tasks());
  EXPECT_VALUE_ERROR(
      layer->forward(Nest<at::Tensor>::list({})),
      "[MMoE] expected one input or more, but got an empty nest");
  EXPECT_VALUE_ERROR(
      (layer->forward({{"a", at::ones({2, 3})}, {"b", at::Tensor()}})),
      "[MMoE] input 'b': expected a tensor");
  EXPECT_VALUE_ERROR(
      (layer->forward({{"a", at::ones({2, 3})}, {"b", at::ones({3, 3})}})),
      "[MMoE 'b'] all inputs must have the same batch size or one row, but "
      "this one has 3 rows and an earlier one 2");
  EXPECT_VALUE_ERROR(
      (layer->forward({{"a", at::ones({2, 3})}, {"b", at::ones({2, 3, 4})}})),
      "[MMoE 'b'] expected an input [batch, n], but got [2, 3, 4]");
  EXPECT_VALUE_ERROR(
      layer->forward(at::ones({2, 0})),
      "[MMoE] the last dimension of the input must be >= 1");
  EXPECT_TYPE_ERROR(
      (layer->forward(
          {{"a", at::ones({2, 3})}, {"b", at::ones({2, 3}, at::kDouble)}})),
      "[MMoE 'b'] all inputs must have the same dtype");
  EXPECT_TYPE_ERROR(
      layer->forward(at::ones({2, 3}, at::kLong)),
      "expected a dense floating-point tensor");
  EXPECT_VALUE_ERROR(
      layer->build(PartialShape{std::nullopt, std::nullopt}),
      "[MMoE] needs the size of the last dimension");
  EXPECT_FALSE(layer->input_shapes().has_value());

  layer->forward(at::ones({2, 3}));
  EXPECT_VALUE_ERROR(
      layer->forward(at::ones({2, 4})),
      "[MMoE] was built for inputs of 3 columns in total, but got 4");
  EXPECT_TYPE_ERROR(
      layer->forward(at::ones({2, 3}, at::kDouble)),
      "[MMoE] has parameters of Float, but got inputs of Double");
}

}  // namespace tessera::test::mixture_of_experts_test
