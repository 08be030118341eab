// SPDX-License-Identifier: Apache-2.0
// Backward passes that must not update the tables.
#include <tessera/layers/no_table_update_guard.h>
#include <tessera/layers/partial_tpu_embedding.h>
#include <tessera/optim/make_optimizer.h>
#include <torch/nn/utils/clip_grad.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::no_table_update_guard_test {

// A layer of one table with four rows of width 1. Row i has the value i.
TPUEmbedding make_layer(
    Strategy strategy = Strategy::fused(),
    Apply apply = Apply::kInBackward) {
  return layer_of(
      FeatureConfig{.table = numbered_table("t", 4, 1)},
      optim::Momentum{.learning_rate = 1.0},
      {.strategy = std::move(strategy), .apply = apply});
}

at::Tensor activation_of(TPUEmbedding& layer) {
  return layer->forward(int64s({1, 2})).leaf();
}

class NoTableUpdateGuardTest : public testing::TestWithParam<Strategy> {
 protected:
  NoTableUpdateGuardTest()
      : layer_(make_layer(GetParam())),
        optimizer_(GetParam().is_fused() ? nullptr : make_optimizer(layer_)) {}

  void step() {
    if (optimizer_ != nullptr) {
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }

  TPUEmbedding layer_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    NoTableUpdateGuardTest,
    gradient_forms(),
    strategy_name);

TEST_P(NoTableUpdateGuardTest, ABackwardPassUnderTheGuardChangesNothing) {
  const std::string before = saved(layer_);
  const at::Tensor dense = at::ones({2, 1}).requires_grad_();
  {
    const NoTableUpdateGuard guard(layer_);
    (activation_of(layer_) * dense).sum().backward();
  }
  step();
  expect_close(dense.grad(), floats({2, 1}, {1, 2}));
  EXPECT_TRUE(saved(layer_) == before);
  EXPECT_EQ(layer_->iterations(), 0);
}

// Two losses share one forward(). Only one of them has the guard.
TEST_P(NoTableUpdateGuardTest, AppliesToTheBackwardPassAndNotToTheForward) {
  const at::Tensor activation = activation_of(layer_);
  {
    const NoTableUpdateGuard guard(layer_);
    (activation * 100).sum().backward({}, /*retain_graph=*/true);
  }
  activation.sum().backward();
  step();
  expect_close(tables_of(layer_)[0], floats({4, 1}, {0, 0, 1, 3}));
  EXPECT_EQ(layer_->iterations(), 1);

  at::Tensor loss;
  {
    const NoTableUpdateGuard guard(layer_);
    loss = activation_of(layer_).sum();
  }
  loss.backward();
  step();
  EXPECT_EQ(layer_->iterations(), 2);
}

TEST_P(NoTableUpdateGuardTest, KeepsGradientsOfEarlierPasses) {
  activation_of(layer_).sum().backward();
  {
    const NoTableUpdateGuard outer(layer_);
    { const NoTableUpdateGuard inner(layer_); }
    layer_->forward(int64s({3})).leaf().mul(100).sum().backward();
  }
  step();
  expect_close(tables_of(layer_)[0], floats({4, 1}, {0, 0, 1, 3}));
  // Row 3 has no momentum, so it was not touched.
  expect_close(
      slot_of(layer_, 0, "momenta").flatten(), floats({4}, {0, 1, 1, 0}));
}

// The tables are parameters of their optimizers, which must not apply what the guard
// holds back.
TEST_P(NoTableUpdateGuardTest, AStepUnderTheGuardIsAnErrorOnHostAndPadded) {
  if (GetParam().is_fused()) {
    return;
  }
  const at::Tensor weight = at::ones({1}).requires_grad_();
  torch::optim::SGD sgd(layer_->parameters(), 1.0);
  torch::optim::Adam adam(layer_->parameters(), 1.0);
  const auto mixed = optim::make_optimizer(
      {optim::SpecGroup{.spec = optim::SGD{}, .parameters = {weight}},
       optim::SpecGroup{
           .spec = optim::SGD{}, .parameters = layer_->parameters()}});
  activation_of(layer_).sum().backward();
  const std::string before = saved(layer_);
  {
    const NoTableUpdateGuard guard(layer_);
    (activation_of(layer_) * weight * 100).sum().backward();
    for (torch::optim::Optimizer* optimizer :
         {optimizer_.get(),
          mixed.get(),
          static_cast<torch::optim::Optimizer*>(&sgd),
          static_cast<torch::optim::Optimizer*>(&adam)}) {
      EXPECT_TORCH_ERROR(
          optimizer->step(),
          "[NoTableUpdateGuard] table 't' has no gradient while the guard "
          "exists");
    }
  }
  EXPECT_TRUE(saved(layer_) == before);
  EXPECT_EQ(weight.item<float>(), 1.0F);
  step();  // applies the gradient from before the guard
  expect_close(tables_of(layer_)[0], floats({4, 1}, {0, 0, 1, 3}));
  EXPECT_EQ(layer_->iterations(), 1);
}

TEST_P(NoTableUpdateGuardTest, ZeroGradUnderTheGuardZeroesEarlierGradients) {
  if (GetParam().is_fused()) {
    return;
  }
  const std::string before = saved(layer_);
  activation_of(layer_).sum().backward();
  {
    const NoTableUpdateGuard guard(layer_);
    optimizer_->zero_grad();
    activation_of(layer_).sum().backward();
    optimizer_->step();  // has nothing to apply
  }
  step();
  EXPECT_TRUE(saved(layer_) == before);
}

// These don't change tables, so the error must not be only about step().
TEST_P(NoTableUpdateGuardTest, ErrorsNameWhatElseNeedsGradients) {
  if (GetParam().is_fused()) {
    return;
  }
  activation_of(layer_).sum().backward();
  {
    const NoTableUpdateGuard guard(layer_);
    const char* text =
        "but a function has used it, such as step(), "
        "zero_grad(/*set_to_none=*/false) or clip_grad_norm_(). Call the "
        "function after the guard has ended.";
    EXPECT_TORCH_ERROR(
        torch::nn::utils::clip_grad_norm_(layer_->parameters(), 1.0), text);
    EXPECT_TORCH_ERROR(optimizer_->zero_grad(/*set_to_none=*/false), text);
  }
  step();  // applies the gradient from before the guard
  expect_close(tables_of(layer_)[0], floats({4, 1}, {0, 0, 1, 3}));
}

TEST_P(NoTableUpdateGuardTest, EndsWhenAnExceptionIsThrown) {
  const auto fail = [&] {
    const NoTableUpdateGuard guard(layer_);
    throw std::runtime_error("in the loss");
  };
  EXPECT_THROW(fail(), std::runtime_error);
  activation_of(layer_).sum().backward();
  step();
  EXPECT_EQ(layer_->iterations(), 1);
}

// The generator or the discriminator of an adversarial training, with a table.
struct PlayerImpl : torch::nn::Module {
  PlayerImpl() {
    embedding = register_module("embedding", make_layer());
    tower = register_module("tower", torch::nn::Linear(1, 1));
  }
  TPUEmbedding embedding{nullptr};
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(Player);

TEST(
    NoTableUpdateGuardModelTest,
    AGeneratorsLossLeavesTheDiscriminatorsTables) {
  Player generator;
  Player discriminator;
  const std::string before = saved(discriminator->embedding);
  const at::Tensor generated =
      generator->tower->forward(activation_of(generator->embedding));
  const at::Tensor score = discriminator->tower->forward(
      generated * activation_of(discriminator->embedding));
  {
    const NoTableUpdateGuard guard(discriminator);
    score.sum().backward();
  }
  EXPECT_TRUE(saved(discriminator->embedding) == before);
  EXPECT_EQ(generator->embedding->iterations(), 1);
  EXPECT_TRUE(generator->tower->weight.grad().defined());
}

TEST(
    NoTableUpdateGuardModelTest,
    WithoutTheGuardTheDiscriminatorsTablesChange) {
  Player discriminator;
  torch::optim::SGD generator_optimizer(
      torch::nn::Linear(1, 1)->parameters(), 0.1);
  activation_of(discriminator->embedding).sum().backward();
  generator_optimizer.step();
  EXPECT_EQ(discriminator->embedding->iterations(), 1);
}

TEST(NoTableUpdateGuardModelTest, AddsNothingToAccumulatedGradients) {
  TPUEmbedding layer = make_layer(Strategy::fused(), Apply::kOnStep);
  Combined optimizer(torch::optim::SGD(layer->parameters(), 0.1), {layer});
  optimizer.zero_grad();
  activation_of(layer).sum().backward();
  {
    const NoTableUpdateGuard guard(layer);
    activation_of(layer).mul(100).sum().backward();
  }
  optimizer.step();
  expect_close(tables_of(layer)[0], floats({4, 1}, {0, 0, 1, 3}));

  // The guard does not bring back gradients that zero_grad() of the base class
  // dropped.
  activation_of(layer).sum().backward();
  static_cast<torch::optim::Optimizer&>(optimizer).zero_grad();
  const NoTableUpdateGuard guard(layer);
  activation_of(layer).sum().backward();
  optimizer.step();
  EXPECT_EQ(layer->iterations(), 1);
}

TEST(NoTableUpdateGuardModelTest, WeightsGetTheirGradient) {
  TPUEmbedding layer(
      FeatureConfig{.table = numbered_table("t", 4, 1)},
      optim::SGD{.learning_rate = 1.0});
  const at::Tensor weights = floats({2}, {1, 1}).requires_grad_();
  const NoTableUpdateGuard guard(layer);
  layer->forward(ragged({{2, 3}}), weights).leaf().sum().backward();
  expect_close(weights.grad(), floats({2}, {2, 3}));
  EXPECT_EQ(layer->iterations(), 0);
}

TEST(NoTableUpdateGuardModelTest, RefusesAnEmptyHolder) {
  EXPECT_VALUE_ERROR(
      NoTableUpdateGuard guard(TPUEmbedding(nullptr)),
      "[NoTableUpdateGuard] expected a model, but got an empty holder");
}

TEST(NoTableUpdateGuardModelTest, ReachesBothHalvesOfAPartialLayer) {
  const auto feature = [](const char* name, int64_t rows) {
    return FeatureConfig{.table = numbered_table(name, rows, 1)};
  };
  PartialTPUEmbedding layer(PartialTPUEmbeddingOptions{
      .features =
          {{"large", feature("large", 8)}, {"small", feature("small", 4)}},
      .optimizer = optim::SGD{.learning_rate = 1.0},
      .size_threshold = 5});
  const auto loss = [&] {
    const auto activations =
        layer->forward({{"large", int64s({1})}, {"small", int64s({1})}});
    return activations["large"].sum() + activations["small"].sum();
  };
  {
    const NoTableUpdateGuard guard(layer);
    loss().backward();
  }
  EXPECT_EQ(layer->tpu_embedding()->iterations(), 0);
  const at::Tensor small = layer->small_embedding()->parameters()[0];
  EXPECT_FALSE(small.grad().defined());
  loss().backward();
  EXPECT_EQ(layer->tpu_embedding()->iterations(), 1);
  EXPECT_TRUE(small.grad().defined());
}

}  // namespace tessera::test::no_table_update_guard_test
