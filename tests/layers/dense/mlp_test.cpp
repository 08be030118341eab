// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/layer_json.h>

#include "layers/dense/matrix.h"
#include "layers/dense/mlp_blocks.h"
#include "tests/layers/autocast.h"
#include "tests/test_util.h"

namespace tessera::test::mlp_test {

// The layer needs enough blocks of rows for the threads, and a small batch is one block. With
// larger weights than these in the layers below, all rows are one block, whose products use
// all threads.
constexpr int64_t kLargeWeights = 500'000;
constexpr int64_t kFewRows =
    64;  // by operators, if all rows would be one block

Nest<at::Tensor> list_of(const std::vector<at::Tensor>& tensors) {
  return Nest<at::Tensor>::list({tensors.begin(), tensors.end()});
}

bool has_blocks(const MLP& layer, const std::vector<at::Tensor>& inputs) {
  std::vector<DenseLayer> layers;
  for (const auto& child : layer->children()) {
    const auto linear = std::dynamic_pointer_cast<torch::nn::LinearImpl>(child);
    layers.push_back({.weight = linear->weight, .bias = linear->bias});
  }
  return has_mlp_blocks(inputs, layers);
}

// The layer by blocks, which forward() only uses where they are fast.
at::Tensor by_blocks(MLP& layer, const std::vector<at::Tensor>& inputs) {
  if (!layer->input_shapes()) {
    layer->forward(list_of(inputs));
  }
  std::vector<DenseLayer> layers;
  for (const auto& child : layer->children()) {
    const auto linear = std::dynamic_pointer_cast<torch::nn::LinearImpl>(child);
    const bool is_last = layers.size() + 1 == layer->options().units.size();
    const Activation activation = is_last ? layer->options().final_activation
                                          : layer->options().activation;
    layers.push_back(
        {.weight = linear->weight,
         .bias = linear->bias,
         .has_relu = activation == Activation::kRelu});
  }
  const bool is_large = layers[0].weight.numel() > kLargeWeights;
  EXPECT_EQ(
      has_mlp_blocks(inputs, layers),
      !is_large ||
          (!has_fast_library_products() && inputs[0].size(0) >= kFewRows));
  return mlp_blocks(inputs, layers);
}

// The layer in plain operators.
at::Tensor plain(
    const MLP& layer,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& parameters) {
  const MLPOptions& options = layer->options();
  const size_t step = options.use_bias ? 2 : 1;
  at::Tensor x = at::cat(inputs, -1);
  for (size_t i = 0; i < parameters.size(); i += step) {
    x = at::linear(
        x,
        parameters[i],
        options.use_bias ? std::optional(parameters[i + 1]) : std::nullopt);
    if (i + step < parameters.size() ||
        options.final_activation == Activation::kRelu) {
      x = at::relu(x);
    }
  }
  return x;
}

// Doubles are computed by operators in the layer, too.
std::vector<at::Tensor> doubles_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> doubles;
  for (const at::Tensor& tensor : tensors) {
    doubles.push_back(
        tensor.detach().to(at::kDouble).requires_grad_(tensor.requires_grad()));
  }
  return doubles;
}

// The result and the gradients of all leaves.
std::vector<at::Tensor> result_and_gradients(
    const at::Tensor& result,
    const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> results =
      torch::autograd::grad({result.mul(result.detach().sin()).sum()}, leaves);
  results.insert(results.begin(), result.detach());
  return results;
}

std::vector<at::Tensor> joined(
    std::vector<at::Tensor> first,
    const std::vector<at::Tensor>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

void expect_like_doubles(
    const std::vector<at::Tensor>& results,
    const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(results.size(), expected.size());
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].sizes(), expected[i].sizes()) << i;
    const double size = expected[i].abs().max().item<double>();
    EXPECT_TRUE(at::allclose(
        results[i].to(at::kDouble), expected[i], 1e-4, 1e-5 * size))
        << i;
  }
}

std::vector<at::Tensor> random_inputs(
    int64_t rows,
    const std::vector<int64_t>& widths) {
  std::vector<at::Tensor> inputs;
  for (const int64_t width : widths) {
    inputs.push_back(at::randn({rows, width}).requires_grad_());
  }
  return inputs;
}

// Blocks of rows are computed in float32.
TEST(MLPTest, MatchesPlainOperatorsInDoubles) {
  const Threads one(1);
  at::manual_seed(1);
  const MLPOptions kOptions[] = {
      {.units = {64, 32, 1}},
      {.units = {5, 16}, .final_activation = Activation::kRelu},
      {.units = {1}, .use_bias = false},
      {.units = {40, 1, 3}, .use_bias = false}};
  const std::vector<int64_t> kWidths[] = {{1}, {13}, {16, 780}, {5, 1, 40}};
  for (const MLPOptions& options : kOptions) {
    for (const std::vector<int64_t>& widths : kWidths) {
      for (const int64_t rows : {1, 31, 128, 1000}) {
        SCOPED_TRACE(rows);
        MLP layer(options);
        const auto inputs = random_inputs(rows, widths);
        const at::Tensor result = by_blocks(layer, inputs);
        EXPECT_TRUE(has_blocks(layer, inputs));
        EXPECT_EQ(
            result.sizes(), (std::vector<int64_t>{rows, options.units.back()}));
        const auto parameters = layer->parameters();
        const auto inputs64 = doubles_of(inputs);
        const auto parameters64 = doubles_of(parameters);
        expect_like_doubles(
            result_and_gradients(result, joined(inputs, parameters)),
            result_and_gradients(
                plain(layer, inputs64, parameters64),
                joined(inputs64, parameters64)));
      }
    }
  }
}

TEST(MLPTest, LargeProductsMatchDoubles) {
  const Threads two(2);
  for (const bool use_bias : {false, true}) {
    for (const int64_t rows : {1, 77, 500}) {
      SCOPED_TRACE(rows);
      MLP layer(MLPOptions{
          .units = {1030, 1100},
          .final_activation = Activation::kRelu,
          .use_bias = use_bias});
      const auto inputs = random_inputs(rows, {3, 1100});
      const at::Tensor result = by_blocks(layer, inputs);
      const auto inputs64 = doubles_of(inputs);
      const auto parameters64 = doubles_of(layer->parameters());
      expect_like_doubles(
          result_and_gradients(result, joined(inputs, layer->parameters())),
          result_and_gradients(
              plain(layer, inputs64, parameters64),
              joined(inputs64, parameters64)));
    }
  }
}

TEST(MLPTest, TheNumberOfThreadsDoesNotChangeABit) {
  const std::vector<int64_t> kUnits[] = {{64, 32, 1}, {1100, 1030}};
  for (const std::vector<int64_t>& units : kUnits) {
    MLP layer(MLPOptions{.units = units});
    const auto inputs = random_inputs(1000, {16, 780});
    by_blocks(layer, inputs);
    const auto run = [&](int threads) {
      const Threads guard(threads);
      return result_and_gradients(
          by_blocks(layer, inputs), joined(inputs, layer->parameters()));
    };
    const auto expected = run(1);
    for (const int threads : {2, 3, 16}) {
      const auto results = run(threads);
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_TENSOR_EQ(results[i], expected[i]) << threads << " " << i;
      }
    }
  }
}

TEST(MLPTest, TakesInputsOfAnyStridesAndRank) {
  const Threads one(1);
  const at::Tensor wide = at::randn({70, 20});
  const std::vector<at::Tensor> inputs{
      wide.narrow(1, 3, 5),
      at::randn({4, 70}).t(),
      at::randn({1, 6}).expand({70, 6}),
      at::randn({140, 3}).slice(0, 0, 140, 2),
      at::randn({70, 1}).expand({70, 2}),
      at::randn({70, 1, 5}).select(2, 0)};
  MLP layer(MLPOptions{.units = {8, 3}});
  const at::Tensor result = by_blocks(layer, inputs);
  EXPECT_TRUE(has_blocks(layer, inputs));
  expect_close(result, plain(layer, inputs, layer->parameters()));
  std::vector<at::Tensor> ranks;
  for (const at::Tensor& input : inputs) {
    ranks.push_back(input.unflatten(0, {7, 10}));
  }
  const at::Tensor other = by_blocks(layer, ranks);
  EXPECT_EQ(other.sizes(), (std::vector<int64_t>{7, 10, 3}));
  expect_close(other.flatten(0, 1), result);
  // One tensor of all columns is the same layer's input, too.
  expect_close(layer->forward(at::cat(inputs, 1)), result);
}

TEST(MLPTest, TakesAGradientOfAnyStrides) {
  const Threads one(1);
  MLP layer(MLPOptions{.units = {4, 3}});
  const auto inputs = random_inputs(9, {2, 5});
  const at::Tensor gradient = at::randn({9, 3});
  const auto run = [&](const at::Tensor& output_gradient) {
    return torch::autograd::grad(
        {by_blocks(layer, inputs)}, inputs, {output_gradient});
  };
  const auto expected = run(gradient);
  EXPECT_TENSOR_EQ(run(gradient.t().contiguous().t())[1], expected[1]);
  EXPECT_TENSOR_EQ(
      run(at::ones({1, 1}).expand({9, 3}))[0], run(at::ones({9, 3}))[0]);
}

TEST(MLPTest, GivesTheSameWithoutGradients) {
  for (const int threads : {1, 2, 3}) {
    const Threads guard(threads);
    MLP layer(MLPOptions{.units = {64, 7, 3}});
    const std::vector<at::Tensor> inputs{
        at::randn({400, 6}), at::randn({400, 5})};
    const at::Tensor expected = by_blocks(layer, inputs);
    EXPECT_TRUE(expected.requires_grad());
    {
      const at::NoGradGuard no_grad;
      const at::Tensor result = by_blocks(layer, inputs);
      EXPECT_FALSE(result.requires_grad());
      EXPECT_TENSOR_EQ(result, expected);
    }
    at::Tensor frozen;
    {
      const c10::InferenceMode inference;
      EXPECT_TENSOR_EQ(by_blocks(layer, inputs), expected);
      frozen = inputs[0].clone();
    }
    expect_close(layer->forward(list_of({frozen, inputs[1]})), expected);
    for (at::Tensor& parameter : layer->parameters()) {
      parameter.requires_grad_(false);
    }
    EXPECT_TENSOR_EQ(by_blocks(layer, inputs), expected);
  }
}

TEST(MLPTest, ComputesOnlyTheGradientsThatAreNeeded) {
  const Threads one(1);
  MLP layer(MLPOptions{.units = {6, 5, 1}});
  const auto inputs = random_inputs(200, {3, 4});
  by_blocks(layer, inputs);
  const std::vector<at::Tensor> leaves = joined(inputs, layer->parameters());
  const auto run = [&] {
    for (const at::Tensor& leaf : leaves) {
      leaf.mutable_grad() = at::Tensor();
    }
    by_blocks(layer, inputs).square().sum().backward();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& leaf : leaves) {
      gradients.push_back(leaf.grad());
    }
    return gradients;
  };
  const auto expected = run();
  // Each leaf alone, and all leaves but one.
  for (const bool is_needed : {true, false}) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      for (size_t j = 0; j < leaves.size(); ++j) {
        leaves[j].set_requires_grad((i == j) == is_needed);
      }
      const auto gradients = run();
      for (size_t j = 0; j < leaves.size(); ++j) {
        ASSERT_EQ(gradients[j].defined(), leaves[j].requires_grad());
        if (gradients[j].defined()) {
          expect_close(gradients[j], expected[j]);
        }
      }
    }
  }
}

TEST(MLPTest, SecondDerivativesOfFloat32MatchDoubles) {
  const Threads one(1);
  at::manual_seed(1);
  MLP layer(MLPOptions{.units = {4, 3}});
  const std::vector<at::Tensor> inputs = random_inputs(6, {2, 1});
  by_blocks(layer, inputs);
  EXPECT_TRUE(has_blocks(layer, inputs));
  const auto run = [&](const std::vector<at::Tensor>& leaves,
                       const at::Tensor& result) {
    at::Tensor penalty = at::zeros({}, result.options());
    for (const at::Tensor& gradient : torch::autograd::grad(
             {result.pow(3).sum()}, leaves, {}, std::nullopt, true)) {
      penalty = penalty + gradient.square().sum();
    }
    return torch::autograd::grad({penalty}, leaves);
  };
  const auto parameters = layer->parameters();
  const auto inputs64 = doubles_of(inputs);
  const auto parameters64 = doubles_of(parameters);
  const auto expected =
      run(joined(inputs64, parameters64), plain(layer, inputs64, parameters64));
  EXPECT_GT(expected[0].abs().max().item<double>(), 0.0);
  expect_like_doubles(
      run(joined(inputs, parameters), by_blocks(layer, inputs)), expected);
}

TEST(MLPTest, UsesOperatorsWhereBlocksDoNotFit) {
  MLP layer(MLPOptions{.units = {4}});
  const at::Tensor x = at::randn({3, 2});
  const at::Tensor expected = layer->forward(x);
  {
    const Threads two(2);
    EXPECT_FALSE(has_blocks(layer, {x}));  // one block
    expect_close(layer->forward(x), expected);
  }
  const Threads one(1);
  EXPECT_TRUE(has_blocks(layer, {x}));
  EXPECT_FALSE(has_blocks(layer, {}));
  EXPECT_FALSE(has_blocks(layer, {x.to(at::kBFloat16)}));
  EXPECT_FALSE(has_blocks(layer, {at::randn({3, 3})}));
  EXPECT_FALSE(has_blocks(layer, {at::randn({0, 2})}));
  EXPECT_EQ(
      layer->forward(at::randn({0, 2})).sizes(), (std::vector<int64_t>{0, 4}));
}

TEST(MLPTest, SmallLayersStayInFloat32UnderAutocast) {
  const Threads one(1);
  MLP tower(MLPOptions{.units = {64, 1}});
  MLP wide(MLPOptions{.units = {64, 32}});
  const at::Tensor x = at::randn({200, 40}).requires_grad_();
  const at::Tensor logits = tower->forward(x);
  const at::Tensor expected = wide->forward(x);
  const auto gradient_of = [&](const at::Tensor& result) {
    return torch::autograd::grad({result.to(at::kFloat).sum()}, {x})[0];
  };
  const at::Tensor gradient = gradient_of(expected);
  const Autocast autocast;
  EXPECT_TENSOR_EQ(tower->forward(x), logits);
  const at::Tensor result = wide->forward(x);
  EXPECT_TENSOR_EQ(result, expected.to(at::kBFloat16));
  EXPECT_TENSOR_EQ(gradient_of(result), gradient);
}

TEST(MLPTest, UnderAutocastOnlyAWideResultIsBFloat16) {
  MLP narrow(MLPOptions{.units = {16}});
  MLP wide(MLPOptions{.units = {17}});
  MLP tower(MLPOptions{.units = {17, 1}});
  const at::Tensor x = at::randn({3, 2});
  const Threads two(2);  // which one block is too few for
  const Autocast autocast;
  EXPECT_EQ(narrow->forward(x).scalar_type(), at::kFloat);
  EXPECT_EQ(tower->forward(x).scalar_type(), at::kFloat);
  const at::Tensor result = wide->forward(x);
  EXPECT_EQ(result.scalar_type(), at::kBFloat16);
  EXPECT_TENSOR_EQ(wide->forward(x.to(at::kBFloat16)), result);
  // Operators before the layer may have returned bfloat16.
  const at::Tensor mixed = wide->forward(
      list_of({x.narrow(1, 0, 1), x.narrow(1, 1, 1).to(at::kBFloat16)}));
  EXPECT_TRUE(at::allclose(mixed, result, 0.05, 0.05));
}

TEST(MLPTest, ParametersAreThoseOfLinear) {
  at::manual_seed(5);
  MLP layer(MLPOptions{.units = {3, 2}});  // draws no numbers
  layer->build(Nest<PartialShape>{
      {"a", PartialShape{std::nullopt, 4}}, {"b", PartialShape{7, 1}}});
  EXPECT_EQ(
      layer->named_parameters().keys(),
      (std::vector<std::string>{
          "linear_0.weight",
          "linear_0.bias",
          "linear_1.weight",
          "linear_1.bias"}));
  at::manual_seed(5);
  torch::nn::Linear first(5, 3);
  torch::nn::Linear second(3, 2);
  const auto parameters = layer->parameters();
  EXPECT_TENSOR_EQ(parameters[0], first->weight);
  EXPECT_TENSOR_EQ(parameters[1], first->bias);
  EXPECT_TENSOR_EQ(parameters[2], second->weight);
  EXPECT_TENSOR_EQ(parameters[3], second->bias);
  MLP without(MLPOptions{.units = {3, 2}, .use_bias = false});
  without->build(PartialShape{std::nullopt, 5});
  EXPECT_EQ(without->parameters().size(), 2U);
}

TEST(MLPTest, FollowsALinearInASequential) {
  torch::nn::Linear first(4, 3);
  MLP second(MLPOptions{.units = {2}});
  torch::nn::Sequential model(first, second);
  const at::Tensor x = at::randn({5, 4});
  EXPECT_TENSOR_EQ(model->forward(x), second->forward(first->forward(x)));
  EXPECT_TENSOR_EQ(
      model->forward<Nest<at::Tensor>>(x).leaf(), model->forward(x));
}

TEST(MLPTest, ComputesItsOutputShape) {
  const MLP layer(MLPOptions{.units = {3, 2}});
  const Nest<PartialShape> two{
      {"a", PartialShape{std::nullopt, 4}},
      {"b", PartialShape{7, std::nullopt}}};
  EXPECT_EQ(layer->compute_output_shape(two).leaf(), (PartialShape{7, 2}));
  EXPECT_EQ(
      layer->compute_output_shape(PartialShape{5, 6, 4}).leaf(),
      (PartialShape{5, 6, 2}));
  EXPECT_FALSE(layer->input_shapes().has_value());
}

TEST(MLPTest, RefusesOptionsAndInputs) {
  expect_refusals<MLPOptions>(
      {{{}, "[MLP] units must have 1 to 1024 sizes, but got 0. Set them"},
       {{.units = std::vector<int64_t>(1025, 1)}, "but got 1025"},
       {{.units = {4, 0}}, "[MLP] units[1] must be >= 1, but got 0"}},
      [](const MLPOptions& options) { MLP layer(options); });
  MLP layer(MLPOptions{.units = {4}});
  expect_refusals<Nest<at::Tensor>>(
      {{at::randn({3}),
        "[MLP] expected an input [batch, ..., dim] of rank 2 or more, but got [3]"},
       {{{"a", at::randn({2, 3})}, {"b", at::randn({2, 0})}},
        "[MLP 'b'] the last dimension of the input must be >= 1"},
       {{{"a", at::randn({2, 3})}, {"b", at::randn({2, 1, 3})}},
        "[MLP 'b'] all inputs must have the same sizes"}},
      [&](const Nest<at::Tensor>& inputs) { layer->forward(inputs); });
  EXPECT_VALUE_ERROR(
      (layer->build(Nest<PartialShape>{
          {"a", PartialShape{std::nullopt, 3}},
          {"b", PartialShape{std::nullopt, std::nullopt}}})),
      "[MLP 'b'] needs the size of the last dimension");
  layer->forward(at::randn({2, 4}));
  EXPECT_VALUE_ERROR(
      layer->forward(at::randn({2, 5})),
      "[MLP] was built for inputs of 4 columns in total, but got 5");
}

}  // namespace tessera::test::mlp_test
