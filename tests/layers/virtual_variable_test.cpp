// SPDX-License-Identifier: Apache-2.0
// One backward() makes one update, and the virtual variable stays zero.
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::virtual_variable_test {

// A layer of one table with four rows of width 1. Row i has the value i.
TPUEmbedding make_layer(
    optim::OptimizerSpec optimizer,
    Strategy strategy = Strategy::fused()) {
  const auto table = numbered_table("t", 4, 1);
  return layer_of(
      features_of({{"a", table}, {"b", table}}),
      std::move(optimizer),
      {.strategy = std::move(strategy)});
}

const optim::OptimizerSpec kUnitSgd = optim::SGD{.learning_rate = 1.0};
const Features kBatch{{"a", int64s({0, 1})}, {"b", int64s({1, 2})}};

void expect_table(const TPUEmbedding& layer, std::vector<float> expected) {
  expect_close(
      layer->embedding_tables()["t"], floats({4, 1}, std::move(expected)));
}

// Makes the same Adagrad step on every strategy.
class OneUpdateTest : public testing::TestWithParam<Strategy> {
 protected:
  OneUpdateTest()
      : layer_(make_layer(optim::Adagrad{.learning_rate = 1.0}, GetParam())) {}

  // Adagrad shows that gradients are summed before they are squared. For layers
  // with parameters, the test makes the step itself.
  void step(const at::Tensor& loss) {
    loss.backward();
    if (!GetParam().is_fused()) {
      const at::NoGradGuard no_grad;
      const at::Tensor gradient = layer_->parameters()[0].grad();
      const at::Tensor accumulator = gradient * gradient + 0.1;
      layer_->parameters()[0].sub_(gradient / accumulator.sqrt());
    } else {
      EXPECT_EQ(layer_->iterations(), 1);
    }
  }

  static float updated(float row, float gradient) {
    return row - gradient / std::sqrt(0.1F + gradient * gradient);
  }

  TPUEmbedding layer_;
};

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    OneUpdateTest,
    strategies(),
    strategy_name);

TEST_P(OneUpdateTest, TwoForwardsInOneLoss) {
  const auto first = layer_->forward(kBatch);
  const auto second = layer_->forward(kBatch);
  step(first["a"].sum() + 2 * second["a"].sum());
  expect_table(layer_, {updated(0, 3), updated(1, 3), 2, 3});
}

TEST_P(OneUpdateTest, TwoTowersWithASharedTable) {
  const auto activations = layer_->forward(kBatch);
  const at::Tensor left = (activations["a"] * 2).square().sum();
  const at::Tensor right = (activations["b"] * 3).sum();
  step(left + right);
  expect_table(layer_, {updated(0, 0), updated(1, 8 + 3), updated(2, 3), 3});
}

TEST_P(OneUpdateTest, AnUnusedFeatureAddsNothing) {
  step(layer_->forward(kBatch)["b"].sum());
  expect_table(layer_, {0, updated(1, 1), updated(2, 1), 3});
}

TEST_P(OneUpdateTest, AnUnusedForwardAddsNothing) {
  layer_->forward(kBatch);
  step(layer_->forward(kBatch)["a"].sum());
  expect_table(layer_, {updated(0, 1), updated(1, 1), 2, 3});
}

TEST_P(OneUpdateTest, TwoSummedLossesShareOneBackward) {
  const auto activations = layer_->forward(kBatch);
  const at::Tensor detached = activations["a"].detach();
  step((activations["a"] * detached).sum() + activations["b"].sum());
  expect_table(layer_, {updated(0, 0), updated(1, 1 + 1), updated(2, 1), 3});
}

TEST(VirtualVariableTest, RowsOfAnUnusedFeatureCountAsTouched) {
  const optim::Adam adam{.learning_rate = 1.0, .beta_1 = 0.5, .beta_2 = 0.5};
  auto layer = make_layer(adam);
  layer->forward(kBatch)["b"].sum().backward();
  layer->forward(kBatch)["a"].sum().backward();
  // Row 2 belongs to b, which had a gradient only the first time.
  const at::Tensor momenta = slot_of(layer, 0, "momenta");
  expect_close(momenta, floats({4, 1}, {0.5, 0.75, 0.25, 0}));
  const float first = 0.5F / std::sqrt(0.5F);
  const float second = 0.25F / std::sqrt(0.25F);
  EXPECT_NEAR(
      layer->embedding_tables()["t"][2].item<float>(),
      2 - first - second,
      1e-6);
}

// Code that initializes all parameters, or a decay, must not leave a value in it.
TEST(VirtualVariableTest, ForwardSetsItBackToZero) {
  auto layer = make_layer(kUnitSgd);
  torch::optim::AdamW optimizer(
      layer->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
  for (const float value : {3.0F, std::numeric_limits<float>::quiet_NaN()}) {
    const at::NoGradGuard no_grad;
    layer->virtual_variable().fill_(value);
    const at::AutoGradMode with_grad(true);
    const at::Tensor loss = layer->forward(kBatch)["a"].sum();
    EXPECT_EQ(layer->virtual_variable().item<float>(), 0.0F);
    loss.backward();
    optimizer.step();
    EXPECT_EQ(layer->virtual_variable().item<float>(), 0.0F);
  }
  expect_table(layer, {-2, -1, 2, 3});
}

TEST(VirtualVariableTest, TwoLayersInOneLossAreUpdatedOnceEach) {
  auto left = make_layer(kUnitSgd);
  auto right = make_layer(kUnitSgd);
  const auto left_out = left->forward(kBatch);
  const auto right_out = right->forward(kBatch);
  (left_out["a"] * right_out["b"]).sum().backward();
  expect_table(left, {0 - 1, 1 - 2, 2, 3});
  expect_table(right, {0, 1 - 0, 2 - 1, 3});
  EXPECT_EQ(left->iterations(), 1);
  EXPECT_EQ(right->iterations(), 1);
}

TEST(VirtualVariableTest, TwoBackwardPassesAreTwoUpdates) {
  auto layer = make_layer(kUnitSgd);
  const auto first = layer->forward(kBatch);
  const auto second = layer->forward(kBatch);
  first["a"].sum().backward();
  second["a"].sum().backward();
  EXPECT_EQ(layer->iterations(), 2);
  expect_table(layer, {-2, -1, 2, 3});
}

TEST(VirtualVariableTest, GradForDenseInputsOnlyGivesNoUpdate) {
  auto layer = make_layer(kUnitSgd);
  const auto before = tables_of(layer);
  const at::Tensor dense = at::ones({2, 1}).requires_grad_();
  const at::Tensor loss = (layer->forward(kBatch)["a"] * dense).sum();
  const auto gradients = torch::autograd::grad(
      {loss}, {dense}, /*grad_outputs=*/{}, /*retain_graph=*/true);
  expect_close(gradients[0], floats({2, 1}, {0, 1}));
  EXPECT_EQ(layer->iterations(), 0);
  expect_same_tables(layer, before);
  // A gradient of the virtual variable makes the update.
  const auto zero = torch::autograd::grad({loss}, {layer->virtual_variable()});
  expect_close(zero[0], at::zeros({1}));
  expect_table(layer, {-1, 0, 2, 3});
}

TEST(VirtualVariableTest, GradForActivationsOnlyGivesNoUpdate) {
  auto layer = make_layer(kUnitSgd);
  const auto before = tables_of(layer);
  const auto activations = layer->forward(kBatch);
  const at::Tensor loss = activations["a"].square().sum();
  const auto gradients = torch::autograd::grad({loss}, {activations["a"]});
  expect_close(gradients[0], floats({2, 1}, {0, 2}));
  EXPECT_EQ(layer->iterations(), 0);
  expect_same_tables(layer, before);
}

TEST(VirtualVariableTest, ALossWithoutTheLayerGivesNoUpdate) {
  auto layer = make_layer(kUnitSgd);
  auto other = make_layer(kUnitSgd);
  const auto before = tables_of(layer);
  const at::Tensor dense = at::ones({2, 1}).requires_grad_();
  const auto activations = layer->forward(kBatch);
  (activations["a"].detach() * dense + other->forward(kBatch)["a"])
      .sum()
      .backward();
  EXPECT_EQ(other->iterations(), 1);
  EXPECT_EQ(layer->iterations(), 0);
  EXPECT_FALSE(layer->virtual_variable().grad().defined());
  expect_same_tables(layer, before);
}

TEST(VirtualVariableTest, NothingHappensWithoutABackwardPass) {
  auto layer = make_layer(kUnitSgd);
  const auto before = tables_of(layer);
  const at::Tensor loss = layer->forward(kBatch)["a"].sum();
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(layer->forward(kBatch)["a"].requires_grad());
  }
  {
    const c10::InferenceMode inference;
    expect_close(layer->forward(kBatch)["a"], floats({2, 1}, {0, 1}));
  }
  layer->eval();
  EXPECT_TRUE(layer->forward(kBatch)["a"].requires_grad());
  EXPECT_EQ(layer->iterations(), 0);
  expect_same_tables(layer, before);
}

TEST(VirtualVariableTest, AFrozenVirtualVariableFreezesTheTables) {
  auto layer = make_layer(kUnitSgd);
  const auto before = tables_of(layer);
  layer->virtual_variable().requires_grad_(false);
  const at::Tensor dense = at::ones({2, 1}).requires_grad_();
  (layer->forward(kBatch)["a"] * dense).sum().backward();
  expect_close(dense.grad(), floats({2, 1}, {0, 1}));
  EXPECT_EQ(layer->iterations(), 0);
  expect_same_tables(layer, before);
  layer->virtual_variable().requires_grad_(true);
  layer->forward(kBatch)["a"].sum().backward();
  expect_table(layer, {-1, 0, 2, 3});
}

TEST(VirtualVariableTest, FreezingBetweenForwardAndBackwardFreezesTheTables) {
  auto layer = make_layer(kUnitSgd);
  const auto before = tables_of(layer);
  const at::Tensor loss = layer->forward(kBatch)["a"].sum();
  layer->virtual_variable().requires_grad_(false);
  loss.backward();
  EXPECT_EQ(layer->iterations(), 0);
  expect_same_tables(layer, before);
}

// Trains a layer and a dense module by one optimizer, as in a model. Some
// optimizers change a parameter whose gradient is zero.
template <class Optimizer, class Options>
void expect_exactly_zero_after_100_steps(const Options& options) {
  auto layer = make_layer(optim::SGD{.learning_rate = 0.1});
  torch::nn::Linear dense(1, 1);
  std::vector<at::Tensor> parameters = dense->parameters();
  parameters.push_back(layer->virtual_variable());
  Optimizer optimizer(parameters, options);
  for (int step = 0; step < 100; ++step) {
    const at::Tensor weight = dense->weight.detach().clone();
    optimizer.zero_grad();
    dense->forward(layer->forward(kBatch)["a"]).sigmoid().sum().backward();
    ASSERT_TRUE(layer->virtual_variable().grad().defined());
    ASSERT_TENSOR_EQ(layer->virtual_variable().grad(), at::zeros({1}));
    optimizer.step();
    ASSERT_TENSOR_EQ(layer->virtual_variable(), at::zeros({1}));
    ASSERT_FALSE(at::equal(dense->weight, weight));
  }
  EXPECT_EQ(layer->iterations(), 100);
}

TEST(VirtualVariableTest, StaysZeroUnderSgdWithMomentum) {
  expect_exactly_zero_after_100_steps<torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
}

TEST(VirtualVariableTest, StaysZeroUnderAdamWWithWeightDecay) {
  expect_exactly_zero_after_100_steps<torch::optim::AdamW>(
      torch::optim::AdamWOptions(0.1).weight_decay(0.1));
}

TEST(VirtualVariableTest, StaysZeroUnderRmsProp) {
  expect_exactly_zero_after_100_steps<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.1).momentum(0.9).centered(true));
}

TEST(VirtualVariableTest, ActivationsTakeInPlaceOperators) {
  auto layer = make_layer(kUnitSgd);
  const auto activations = layer->forward(kBatch);
  at::Tensor a = activations["a"];
  at::Tensor b = activations["b"];
  a.mul_(3);
  b.add_(1).relu_();
  (a.sum() + b.sum()).backward();
  expect_table(layer, {0 - 3, 1 - 3 - 1, 2 - 1, 3});
}

TEST(VirtualVariableTest, GradientsMayHaveAnyStrides) {
  const auto table = constant_table("t", 3, 2, 0.0);
  TPUEmbedding layer = layer_of(FeatureConfig{.table = table}, kUnitSgd);
  const at::Tensor ids = int64s({0, 1, 1});
  // The gradient of a sum is expanded, with strides of 0.
  layer->forward(ids).leaf().sum().backward();
  expect_close(
      layer->embedding_tables()["t"], floats({3, 2}, {-1, -1, -2, -2, 0, 0}));
  // The gradient of a transposed tensor is transposed.
  const at::Tensor upstream = floats({2, 3}, {1, 2, 3, 4, 5, 6});
  (layer->forward(ids).leaf().t() * upstream).sum().backward();
  expect_close(
      layer->embedding_tables()["t"],
      floats({3, 2}, {-1 - 1, -1 - 4, -2 - 5, -2 - 11, 0, 0}));
  layer->forward(ids).leaf().t().backward(at::full({1}, 2.0).expand({2, 3}));
  expect_close(
      layer->embedding_tables()["t"], floats({3, 2}, {-4, -7, -11, -17, 0, 0}));
}

TEST(VirtualVariableTest, BackwardMayRunOnAnotherThread) {
  auto layer = make_layer(kUnitSgd);
  const at::Tensor loss = layer->forward(kBatch)["a"].sum();
  std::thread thread([&] { loss.backward(); });
  thread.join();
  EXPECT_EQ(layer->iterations(), 1);
  expect_table(layer, {-1, 0, 2, 3});
  EXPECT_TRUE(layer->virtual_variable().grad().defined());
}

TEST(VirtualVariableTest, TheLayerMayBeDestroyedBeforeBackward) {
  at::Tensor loss;
  at::Tensor table;
  at::Tensor variable;
  {
    auto layer = make_layer(kUnitSgd);
    loss = layer->forward(kBatch)["a"].sum();
    table = layer->embedding_tables()["t"];
    variable = layer->virtual_variable();
  }
  loss.backward();
  expect_close(table, floats({4, 1}, {-1, 0, 2, 3}));
  EXPECT_TENSOR_EQ(variable.grad(), at::zeros({1}));
}

TEST(VirtualVariableTest, AMissingGradientWarnsOnceAndCountsAsZeros) {
  auto layer =
      make_layer(optim::SGD{.learning_rate = 1.0, .weight_decay_factor = 0.5});
  const Warnings warnings;
  layer->forward(kBatch)["a"].sum().backward();
  layer->forward(kBatch)["a"].sum().backward();
  ASSERT_EQ(warnings.texts.size(), 1);
  EXPECT_CONTAINS(
      warnings.texts[0], "[feature 'b'] no gradient reached its activation");
  // Only feature b looks up row 2, whose weight decayed twice.
  expect_table(layer, {-1.5F, -1.25F, 0.5F, 3.0F});
}

TEST(VirtualVariableTest, ABackwardPassWithCreateGraphUpdatesOnce) {
  auto layer = make_layer(kUnitSgd);
  const at::Tensor loss = layer->forward(kBatch)["a"].square().sum();
  const auto zero = torch::autograd::grad(
      {loss},
      {layer->virtual_variable()},
      /*grad_outputs=*/{},
      /*retain_graph=*/std::nullopt,
      /*create_graph=*/true);
  EXPECT_TENSOR_EQ(zero[0], at::zeros({1}));
  EXPECT_EQ(layer->iterations(), 1);
  expect_table(layer, {0, 1 - 2, 2, 3});
}

}  // namespace tessera::test::virtual_variable_test
