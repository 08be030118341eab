// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/precision.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <tessera/layers/layer_json.h>

#include "layers/dense/low_rank_crosses.h"
#include "layers/dense/matrix.h"
#include "tests/test_util.h"

namespace tessera::test::multi_layer_dcn_test {

bool has_kernels(
    const MultiLayerDCN& layer,
    const std::vector<at::Tensor>& inputs) {
  std::vector<LowRankCross> crosses;
  for (const auto& child : layer->children()) {
    const auto parameters = child->parameters();
    crosses.push_back(
        {parameters[0],
         parameters[1],
         parameters.size() > 2 ? parameters[2] : at::Tensor()});
  }
  return has_low_rank_crosses(inputs, crosses);
}

// At a width of 3000, a block has 32 rows. With a larger rank, all rows are one block.
constexpr int64_t kLargeRank = 40;

TEST(MultiLayerDCNTest, IsAStackOfCrosses) {
  MultiLayerDCN stack(MultiLayerDCNOptions{.projection_dim = 2});
  const at::Tensor x0 = at::randn({2, 4});
  const at::Tensor result = stack->forward(x0);
  EXPECT_EQ(
      stack->named_parameters().keys(),
      (std::vector<std::string>{
          "cross_0.kernel_u",
          "cross_0.kernel_v",
          "cross_0.bias",
          "cross_1.kernel_u",
          "cross_1.kernel_v",
          "cross_1.bias",
          "cross_2.kernel_u",
          "cross_2.kernel_v",
          "cross_2.bias"}));
  at::Tensor x = x0;
  for (const auto& child : stack->children()) {
    x = std::dynamic_pointer_cast<CrossImpl>(child)->forward(x0, x);
  }
  EXPECT_TRUE(at::allclose(x, result, 1e-5, 1e-6));
}

// Kernels compute float32, and LibTorch's operators compute doubles.
TEST(MultiLayerDCNTest, Float32MatchesDoubles) {
  const Threads one(1);
  for (const bool use_bias : {false, true}) {
    for (const auto& [dim, rank] :
         {std::pair<int64_t, int64_t>{1, 3},
          {5, 3},
          {40, 3},
          {3000, 3},
          {3000, kLargeRank}}) {
      SCOPED_TRACE(dim);
      MultiLayerDCN layer(MultiLayerDCNOptions{
          .projection_dim = rank,
          .num_layers = 3,
          .use_bias = use_bias,
          .kernel_initializer = initializers::Normal{.stddev = 0.1},
          .bias_initializer = initializers::Normal{.stddev = 1.0}});
      layer->build(PartialShape{std::nullopt, dim});
      // Several blocks of rows, the last one short. x0 is a slice of a wider tensor.
      const at::Tensor x0 =
          at::randn({7, 11, 2 * dim}, at::kDouble).narrow(2, 1, dim);
      const at::Tensor loss_weights = at::randn({7, 11, dim}, at::kDouble);
      const auto run = [&](at::ScalarType dtype) {
        layer->to(dtype);
        layer->zero_grad();
        const at::Tensor input = x0.to(dtype).detach().requires_grad_();
        EXPECT_EQ(
            has_kernels(layer, {input}),
            dtype == at::kFloat && (rank == 3 || !has_fast_library_products()));
        const at::Tensor result = layer->forward(input);
        result.mul(loss_weights.to(dtype)).sum().backward();
        std::vector<at::Tensor> results{result, input.grad()};
        for (const at::Tensor& parameter : layer->parameters()) {
          results.push_back(parameter.grad().clone());
        }
        return results;
      };
      const auto results = run(at::kFloat);
      const auto expected = run(at::kDouble);
      ASSERT_EQ(results.size(), expected.size());
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].sizes(), expected[i].sizes());
        const double size = expected[i].abs().max().item<double>();
        EXPECT_TRUE(at::allclose(
            results[i].to(at::kDouble), expected[i], 1e-4, 1e-5 * size))
            << i;
      }
    }
  }
}

TEST(MultiLayerDCNTest, GivesTheSameWithoutGradients) {
  const Threads one(1);
  for (const auto& [num_layers, rank] :
       {std::pair<int64_t, int64_t>{1, 3}, {3, 3}, {3, kLargeRank}}) {
    MultiLayerDCN layer(
        MultiLayerDCNOptions{.projection_dim = rank, .num_layers = num_layers});
    const at::Tensor x0 = at::randn({100, 3001});  // four blocks, the last of 4
    const at::Tensor before = x0.clone();
    const at::Tensor expected = layer->forward(x0);
    EXPECT_TRUE(expected.requires_grad());
    at::Tensor result;
    {
      const at::NoGradGuard no_grad;
      EXPECT_EQ(
          has_kernels(layer, {x0}), rank == 3 || !has_fast_library_products());
      result = layer->forward(x0);
    }
    EXPECT_FALSE(result.requires_grad());
    EXPECT_TENSOR_EQ(result, expected);
    EXPECT_TENSOR_EQ(x0, before);
    for (at::Tensor& parameter : layer->parameters()) {
      parameter.requires_grad_(false);
    }
    EXPECT_TENSOR_EQ(layer->forward(x0), expected);
  }
}

TEST(MultiLayerDCNTest, TheNumberOfThreadsDoesNotChangeABit) {
  const Threads one(1);
  for (const auto& [dim, rank] :
       {std::pair<int64_t, int64_t>{643, 5}, {3000, kLargeRank}}) {
    if (rank == kLargeRank && has_fast_library_products()) {
      continue;  // MKL's last bits depend on the number of threads
    }
    MultiLayerDCN layer(
        MultiLayerDCNOptions{.projection_dim = rank, .num_layers = 3});
    const at::Tensor x0 = at::randn({1000, dim}).requires_grad_();
    const auto run = [&](int threads) {
      at::set_num_threads(threads);
      layer->zero_grad();
      x0.mutable_grad() = at::Tensor();
      const at::Tensor result = layer->forward(x0);
      EXPECT_TRUE(has_kernels(layer, {x0}));
      result.square().sum().backward();
      std::vector<at::Tensor> results{result, x0.grad()};
      for (const at::Tensor& parameter : layer->parameters()) {
        EXPECT_TRUE(parameter.grad().is_contiguous());
        results.push_back(parameter.grad().clone());
      }
      return results;
    };
    const auto expected = run(1);
    for (const int threads : {2, 3, 16}) {
      const auto results = run(threads);
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_TENSOR_EQ(results[i], expected[i]) << threads << ", " << i;
      }
    }
  }
}

TEST(MultiLayerDCNTest, OneBlockOfSeveralInputsIsLikeThatOfOne) {
  const Threads two(2);
  MultiLayerDCN layer(
      MultiLayerDCNOptions{.projection_dim = kLargeRank, .num_layers = 3});
  const at::Tensor x0 = at::randn({70, 3000}).requires_grad_();
  const at::Tensor left = x0.detach().narrow(1, 0, 1000).requires_grad_();
  const at::Tensor right = x0.detach().narrow(1, 1000, 2000);  // frozen
  const at::Tensor expected = layer->forward(x0);
  expected.square().sum().backward();
  const auto gradients = [&] {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : layer->parameters()) {
      all.push_back(parameter.grad().clone());
    }
    return all;
  };
  const auto expected_gradients = gradients();
  layer->zero_grad();
  const at::Tensor result = layer->forward(Nest<at::Tensor>(left, right));
  result.square().sum().backward();
  expect_close(result, expected);
  expect_close(left.grad(), x0.grad().narrow(1, 0, 1000));
  EXPECT_FALSE(right.grad().defined());
  const auto results = gradients();
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(at::allclose(results[i], expected_gradients[i], 1e-4, 1e-4));
  }
  // Frozen weights get none.
  for (at::Tensor& parameter : layer->parameters()) {
    parameter.requires_grad_(false);
    parameter.mutable_grad() = at::Tensor();
  }
  left.mutable_grad() = at::Tensor();
  layer->forward(Nest<at::Tensor>(left, right)).square().sum().backward();
  expect_close(left.grad(), x0.grad().narrow(1, 0, 1000));
  for (const at::Tensor& parameter : layer->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(MultiLayerDCNTest, DoublesStayDoublesUnderAutocast) {
  MultiLayerDCN layer(MultiLayerDCNOptions{.projection_dim = 2});
  const at::Tensor x0 = at::randn({3, 4}, at::kDouble);
  layer->build(PartialShape{std::nullopt, 4});
  layer->to(at::kDouble);
  const at::Tensor expected = layer->forward(x0);
  const PrecisionScope scope(Precision::kBFloat16);
  EXPECT_TENSOR_EQ(layer->forward(x0), expected);
  layer->to(at::kFloat);
  EXPECT_TYPE_ERROR(layer->forward(x0), "[Cross] has parameters of Float");
}

TEST(MultiLayerDCNTest, FrozenParametersGetNoGradient) {
  const Threads one(1);
  MultiLayerDCN layer(MultiLayerDCNOptions{.projection_dim = 3});
  const at::Tensor x0 = at::randn({70, 3000}).requires_grad_();
  const auto gradient = [&] {
    x0.mutable_grad() = at::Tensor();
    layer->forward(x0).square().sum().backward();
    return x0.grad();
  };
  const at::Tensor expected = gradient();
  layer->zero_grad();
  for (at::Tensor& parameter : layer->parameters()) {
    parameter.requires_grad_(false);
  }
  EXPECT_TENSOR_EQ(gradient(), expected);
  layer->parameters()[1].requires_grad_();
  EXPECT_TENSOR_EQ(gradient(), expected);
  for (const at::Tensor& parameter : layer->parameters()) {
    EXPECT_EQ(parameter.grad().defined(), parameter.requires_grad());
  }
}

// x0, and its columns as a slice, a contiguous tensor and a transposed one.
struct JoinedInputs {
  explicit JoinedInputs(int64_t rows, at::ScalarType dtype = at::kFloat)
      : x0(at::randn({rows, 8}, dtype)),
        parts{
            x0.narrow(1, 0, 3),
            x0.narrow(1, 3, 1).contiguous(),
            x0.narrow(1, 4, 4).t().contiguous().t()} {
    for (at::Tensor& part : parts) {
      part = part.detach().requires_grad_();
    }
  }
  Nest<at::Tensor> nest() const {
    return {{"a", parts[0]}, {"b", parts[1]}, {"c", parts[2]}};
  }

  at::Tensor x0;
  std::vector<at::Tensor> parts;
};

TEST(MultiLayerDCNTest, ANestIsJoined) {
  const Threads one(1);
  MultiLayerDCN layer(MultiLayerDCNOptions{.projection_dim = 3});
  const JoinedInputs inputs(/*rows=*/11000);  // two blocks, in parts
  const at::Tensor x0 = inputs.x0.clone().requires_grad_();
  const at::Tensor expected = layer->forward(x0);
  expected.square().sum().backward();
  std::vector<at::Tensor> expected_gradients;
  for (const at::Tensor& parameter : layer->parameters()) {
    expected_gradients.push_back(parameter.grad().clone());
  }
  layer->zero_grad();
  ASSERT_TRUE(has_kernels(layer, inputs.parts));
  const at::Tensor result = layer->forward(inputs.nest());
  EXPECT_TENSOR_EQ(result, expected);
  result.square().sum().backward();
  int64_t begin = 0;
  for (const at::Tensor& part : inputs.parts) {
    EXPECT_TENSOR_EQ(part.grad(), x0.grad().narrow(1, begin, part.size(1)));
    begin += part.size(1);
  }
  for (size_t i = 0; i < expected_gradients.size(); ++i) {
    EXPECT_TENSOR_EQ(layer->parameters()[i].grad(), expected_gradients[i]);
  }
  const at::NoGradGuard no_grad;
  EXPECT_TENSOR_EQ(layer->forward(inputs.nest()), expected);
}

// The sums of a product have two blocks of the depth.
TEST(MultiLayerDCNTest, ALargeRankGivesTheSameWithoutGradients) {
  const Threads one(1);
  MultiLayerDCN layer(
      MultiLayerDCNOptions{.projection_dim = 300, .num_layers = 3});
  const JoinedInputs inputs(/*rows=*/40);
  const at::Tensor expected = layer->forward(inputs.nest());
  EXPECT_TRUE(has_kernels(layer, inputs.parts));
  EXPECT_TRUE(expected.requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_TENSOR_EQ(layer->forward(inputs.nest()), expected);
  EXPECT_TENSOR_EQ(layer->forward(inputs.x0), expected);
}

// Few bits are lost although x0 is added to much smaller numbers.
TEST(MultiLayerDCNTest, SmallCrossesAreAccurate) {
  const Threads one(1);
  MultiLayerDCN layer(MultiLayerDCNOptions{
      .projection_dim = 32,
      .kernel_initializer = initializers::Normal{.stddev = 0.01}});
  const at::Tensor x0 = at::randn({64, 640}, at::kDouble);
  layer->build(PartialShape{std::nullopt, 640});
  const at::NoGradGuard no_grad;
  const at::Tensor result = layer->forward(x0.to(at::kFloat));
  layer->to(at::kDouble);
  const at::Tensor exact = layer->forward(x0.to(at::kFloat).to(at::kDouble));
  const at::Tensor errors = (result.to(at::kDouble) - exact) / exact;
  EXPECT_LT(errors.square().mean().sqrt().item<double>(), 8e-8);
}

TEST(MultiLayerDCNTest, InputsMayBeChangedLikeOtherTensors) {
  const Threads one(1);
  MultiLayerDCN layer(MultiLayerDCNOptions{.projection_dim = 3});
  // Another layer may change what a single input is a part of.
  const at::Tensor base = at::randn({5, 9});
  at::Tensor result = layer->forward(base.narrow(1, 1, 8));
  base.zero_();
  result.sum().backward();
  // Those of a nest are kept for second derivatives, so LibTorch refuses a change.
  const JoinedInputs inputs(/*rows=*/5);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : inputs.parts) {
    parts.push_back(part * 2);
  }
  result = layer->forward({parts[0], parts[1], parts[2]});
  parts[1].zero_();
  EXPECT_THROW(result.sum().backward(), c10::Error);
}

TEST(MultiLayerDCNTest, ArchivesOfATensorAndOfANestFitEachOther) {
  const JoinedInputs inputs(/*rows=*/5);
  for (const bool saves_nest : {false, true}) {
    MultiLayerDCN saved(MultiLayerDCNOptions{.projection_dim = 3});
    MultiLayerDCN loaded(MultiLayerDCNOptions{.projection_dim = 3});
    (saves_nest ? saved : loaded)->forward(inputs.nest());
    (saves_nest ? loaded : saved)->forward(inputs.x0);
    copy_by_archive(saved, loaded);
    EXPECT_TENSOR_EQ(loaded->forward(inputs.x0), saved->forward(inputs.nest()));
  }
}

TEST(MultiLayerDCNTest, ANestBuildsTheLayer) {
  MultiLayerDCN layer(MultiLayerDCNOptions{.projection_dim = 3});
  const JoinedInputs inputs(/*rows=*/5);
  layer->forward(inputs.nest());
  EXPECT_EQ(layer->parameters()[0].sizes(), (at::IntArrayRef{8, 3}));
  EXPECT_EQ(
      layer
          ->compute_output_shape(
              {{"a", PartialShape{std::nullopt, 2}},
               {"b", PartialShape{std::nullopt, 6}}})
          .leaf(),
      (PartialShape{std::nullopt, 8}));
  // An input of one row counts for all rows, and inputs may have more than two dimensions.
  const at::Tensor row = at::randn({1, 2, 3});
  const at::Tensor rows = at::randn({6, 2, 5});
  const at::Tensor result = layer->forward({row, rows});
  EXPECT_EQ(result.sizes(), (at::IntArrayRef{6, 2, 8}));
  EXPECT_TRUE(at::allclose(
      result, layer->forward(at::cat({row.expand({6, 2, 3}), rows}, 2))));
}

TEST(MultiLayerDCNTest, SecondDerivativesOfFloat32MatchDoubles) {
  const Threads one(1);
  MultiLayerDCN layer(MultiLayerDCNOptions{.projection_dim = 2});
  layer->build(PartialShape{std::nullopt, 4});
  const at::Tensor x0 = at::randn({3, 4}, at::kDouble);
  const auto run = [&](at::ScalarType dtype) {
    layer->to(dtype);
    std::vector<at::Tensor> inputs = layer->parameters();
    inputs.push_back(x0.to(dtype).detach().requires_grad_());
    // The layer runs twice, so its input depends on the same parameters.
    const at::Tensor twice = layer->forward(layer->forward(inputs.back()));
    const at::Tensor energy = twice.pow(3).sum();
    at::Tensor penalty = at::zeros({}, dtype);
    for (const at::Tensor& gradient : torch::autograd::grad(
             {energy}, inputs, {}, std::nullopt, /*create_graph=*/true)) {
      penalty = penalty + gradient.square().sum();
    }
    return torch::autograd::grad({penalty}, inputs);
  };
  const auto results = run(at::kFloat);
  const auto expected = run(at::kDouble);
  for (size_t i = 0; i < results.size(); ++i) {
    const double size = expected[i].abs().max().item<double>();
    EXPECT_GT(size, 0.0);
    EXPECT_TRUE(at::allclose(
        results[i].to(at::kDouble), expected[i], 1e-3, 1e-4 * size))
        << i;
  }
}

TEST(MultiLayerDCNTest, AFailedResetKeepsTheParameters) {
  MultiLayerDCN layer;
  const at::Tensor x = at::randn({2, 4});
  const at::Tensor expected = layer->forward(x);
  EXPECT_THROW(layer->reset(), c10::Error);  // only clone() may call it
  EXPECT_TENSOR_EQ(layer->forward(x), expected);
}

TEST(MultiLayerDCNTest, UsesOperatorsWhereKernelsDoNotFit) {
  const Threads one(1);
  MultiLayerDCN layer(MultiLayerDCNOptions{.projection_dim = 40});
  const at::Tensor x0 = at::randn({3, 4}).requires_grad_();
  layer->forward(x0);
  EXPECT_TRUE(has_kernels(layer, {x0}));
  EXPECT_FALSE(has_kernels(layer, {}));
  EXPECT_FALSE(has_kernels(layer, {at::randn({0, 4})}));
  EXPECT_FALSE(has_kernels(layer, {at::randn({3, 5})}));
  EXPECT_FALSE(has_kernels(layer, {x0, at::empty({3, 0})}));
  EXPECT_FALSE(has_kernels(layer, {x0.to(at::kBFloat16)}));
  // The user has set a bias of one number for all columns.
  layer->parameters()[2].set_data(at::ones({1}));
  EXPECT_FALSE(has_kernels(layer, {x0}));
  EXPECT_EQ(layer->forward(x0).sizes(), x0.sizes());
  EXPECT_VALUE_ERROR(layer->forward(at::randn({4})), "[MultiLayerDCN]");
}

TEST(MultiLayerDCNTest, RefusesOptionsAndInputs) {
  expect_refusals<MultiLayerDCNOptions>(
      {{{.projection_dim = 0},
        "[MultiLayerDCN] projection_dim must be >= 1, but got 0"},
       {{.num_layers = -1},
        "[MultiLayerDCN] num_layers must be in [0, 1024], but got -1"},
       {{.num_layers = std::numeric_limits<int64_t>::max()}, "num_layers"},
       {{.kernel_initializer = initializers::Normal{.stddev = -1}},
        "[MultiLayerDCN kernel] initializer"}},
      [](const MultiLayerDCNOptions& options) {
        MultiLayerDCN layer(options);
      });
  MultiLayerDCN layer;
  EXPECT_VALUE_ERROR(
      layer->build(PartialShape{2, std::nullopt}),
      "needs the size of the last dimension to make its parameters, but got [2, "
      "?]");
  EXPECT_FALSE(layer->input_shapes().has_value());
  layer->forward(at::randn({2, 4}));
  expect_refusals<Nest<at::Tensor>>(
      {{at::randn({2, 5}),
        "[MultiLayerDCN] was built for inputs of 4 columns in total, but got 5"},
       {{at::randn({2, 2}), at::randn({2, 3})},
        "4 columns in total, but got 5"}},
      [&](const Nest<at::Tensor>& inputs) { layer->forward(inputs); });
}

}  // namespace tessera::test::multi_layer_dcn_test
