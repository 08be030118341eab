// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of include/tessera/optim/, which check_docs.cmake
// compares with them.
#include <tessera/tessera.h>

#include "tests/test_util.h"

namespace tessera::optim::reference_optim_test {

constexpr double kTolerance = 1e-6;

class OptimReferenceTest : public testing::Test {
 protected:
  /// A weight of the table, 0.5 at first, after updates with the gradient 2.
  static double weight_after(TPUEmbedding& embedding, int64_t updates = 1) {
    for (int64_t i = 0; i < updates; ++i) {
      (2.0 * embedding->forward({{"user", torch::tensor({3})}})["user"])
          .sum()
          .backward();
    }
    return embedding->embedding_tables()["users"][3][0].item<double>();
  }
  /// The learning rate at a step.
  static double rate_at(const SGD& sgd, int64_t step) {
    return sgd.learning_rate.value(step, "SGD");
  }

  TablePtr users = make_table(
      {.name = "users",
       .vocabulary_size = 10,
       .dim = 2,
       .initializer = initializers::Constant{.value = 0.5}});
  Nest<FeatureConfig> features{{"user", FeatureConfig{.table = users}}};
};

// Schedules.

TEST_F(OptimReferenceTest, ExponentialDecay) {
  // snippet: ExponentialDecay
  // 0.1 for 1000 steps, then 0.096, then 0.09216, and so on.
  const SGD sgd{
      .learning_rate = ExponentialDecay{
          .initial_learning_rate = 0.1,
          .decay_steps = 1000,
          .decay_rate = 0.96,
          .staircase = true}};
  // end snippet
  EXPECT_NEAR(rate_at(sgd, 999), 0.1, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 1000), 0.096, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 2999), 0.09216, kTolerance);
}

TEST_F(OptimReferenceTest, PiecewiseConstantDecay) {
  // snippet: PiecewiseConstantDecay
  // 0.1 up to step 1000, then 0.03 up to step 5000, then 0.01.
  const SGD sgd{
      .learning_rate = PiecewiseConstantDecay{
          .boundaries = {1000, 5000}, .values = {0.1, 0.03, 0.01}}};
  // end snippet
  EXPECT_EQ(rate_at(sgd, 1000), 0.1);
  EXPECT_EQ(rate_at(sgd, 1001), 0.03);
  EXPECT_EQ(rate_at(sgd, 5001), 0.01);
}

TEST_F(OptimReferenceTest, PolynomialDecay) {
  // snippet: PolynomialDecay
  // Falls linearly from 0.1 to 0 in 10,000 steps.
  const SGD sgd{
      .learning_rate = PolynomialDecay{
          .initial_learning_rate = 0.1,
          .decay_steps = 10'000,
          .end_learning_rate = 0.0}};
  // end snippet
  EXPECT_NEAR(rate_at(sgd, 2500), 0.075, kTolerance);
  EXPECT_EQ(rate_at(sgd, 20'000), 0.0);
}

TEST_F(OptimReferenceTest, InverseTimeDecay) {
  // snippet: InverseTimeDecay
  // A half of 0.1 after 1000 steps, a third after 2000 steps, and so on.
  const SGD sgd{
      .learning_rate = InverseTimeDecay{
          .initial_learning_rate = 0.1,
          .decay_steps = 1000,
          .decay_rate = 1.0}};
  // end snippet
  EXPECT_NEAR(rate_at(sgd, 1000), 0.05, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 2000), 0.1 / 3, kTolerance);
}

TEST_F(OptimReferenceTest, CosineDecay) {
  // snippet: CosineDecay
  // Rises from 0 to 0.1 in 1000 steps, then falls to 0 in 9000 steps.
  const SGD sgd{
      .learning_rate = CosineDecay{
          .initial_learning_rate = 0.0,
          .decay_steps = 9000,
          .warmup_target = 0.1,
          .warmup_steps = 1000}};
  // end snippet
  EXPECT_NEAR(rate_at(sgd, 500), 0.05, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 1000), 0.1, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 5500), 0.05, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 10'000), 0.0, kTolerance);
}

TEST_F(OptimReferenceTest, CosineDecayRestarts) {
  // snippet: CosineDecayRestarts
  // Falls from 0.1 to 0 in 1000 steps, then from 0.05 to 0 in 2000 steps.
  const SGD sgd{
      .learning_rate = CosineDecayRestarts{
          .initial_learning_rate = 0.1,
          .first_decay_steps = 1000,
          .t_mul = 2.0,
          .m_mul = 0.5}};
  // end snippet
  EXPECT_NEAR(rate_at(sgd, 0), 0.1, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 500), 0.05, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 2000), 0.025, kTolerance);
}

TEST_F(OptimReferenceTest, Warmup) {
  // snippet: Warmup
  // Rises from 0 to 0.1 in 1000 steps, then falls to 0 in 9000 steps.
  const SGD sgd{
      .learning_rate = Warmup{
          .steps = 1000,
          .then = PolynomialDecay{
              .initial_learning_rate = 0.1,
              .decay_steps = 9000,
              .end_learning_rate = 0.0}}};
  // end snippet
  EXPECT_NEAR(rate_at(sgd, 500), 0.05, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 1000), 0.1, kTolerance);
  EXPECT_NEAR(rate_at(sgd, 5500), 0.05, kTolerance);
}

TEST_F(OptimReferenceTest, LearningRate) {
  double current_rate = 0.2;
  // snippet: LearningRate
  const SGD constant{.learning_rate = 0.1};
  const SGD scheduled{
      .learning_rate =
          CosineDecay{.initial_learning_rate = 0.1, .decay_steps = 10'000}};
  const SGD computed{.learning_rate = [&] { return current_rate; }};
  const SGD named{
      .learning_rate = LearningRate("mine", [&] { return current_rate; })};
  // end snippet
  EXPECT_EQ(rate_at(constant, 5000), 0.1);
  EXPECT_NEAR(rate_at(scheduled, 5000), 0.05, kTolerance);
  current_rate = 0.3;
  EXPECT_EQ(rate_at(computed, 0), 0.3);
  EXPECT_EQ(rate_at(named, 0), 0.3);
  EXPECT_EQ(named.learning_rate.callable_name(), "mine");
}

// Specs.

TEST_F(OptimReferenceTest, OptimizerSpec) {
  const nlohmann::json keras_json{
      {"module", "keras.optimizers"},
      {"class_name", "Adam"},
      {"config", {{"learning_rate", 0.01}}},
      {"registered_name", nullptr}};
  // snippet: OptimizerSpec
  const OptimizerSpec spec = Adagrad{.learning_rate = 0.05};
  const OptimizerSpec named = "adagrad";  // with defaults; see optim/keras.h
  const OptimizerSpec keras = keras_json;  // as Fidelity::kTpu of optim/keras.h

  const Adagrad* adagrad = spec.get_if<Adagrad>();  // nullptr: another spec
  const auto rate_of = [](const auto& held) { return held.learning_rate; };
  const LearningRate rate = std::visit(rate_of, spec.variant());
  // end snippet
  ASSERT_NE(adagrad, nullptr);
  EXPECT_EQ(adagrad->learning_rate, LearningRate(0.05));
  EXPECT_EQ(rate, LearningRate(0.05));
  EXPECT_EQ(named, OptimizerSpec(Adagrad{}));
  EXPECT_EQ(keras, OptimizerSpec(Adam{.learning_rate = 0.01}));
}

TEST_F(OptimReferenceTest, Modify) {
  OptimizerSpec spec = Adam{};
  // snippet: modify
  modify(spec, [](auto& held) { held.learning_rate = 0.1; });
  // end snippet
  EXPECT_EQ(spec, OptimizerSpec(Adam{.learning_rate = 0.1}));
}

TEST_F(OptimReferenceTest, SGD) {
  // snippet: SGD
  TPUEmbedding embedding(
      features,
      SGD{.learning_rate = 0.1,
          .clip_gradient_min = -1.0,
          .clip_gradient_max = 1.0});
  // end snippet
  EXPECT_NEAR(weight_after(embedding), 0.5 - 0.1 * 1.0, kTolerance);
}

TEST_F(OptimReferenceTest, Momentum) {
  // snippet: Momentum
  TPUEmbedding embedding(
      features,
      Momentum{.learning_rate = 0.1, .momentum = 0.9, .use_nesterov = true});
  // end snippet
  EXPECT_NEAR(weight_after(embedding), 0.5 - 0.1 * (2 + 0.9 * 2), kTolerance);
}

TEST_F(OptimReferenceTest, Adagrad) {
  // snippet: Adagrad
  // The rows of rare ids keep taking large steps.
  TPUEmbedding embedding(features, Adagrad{.learning_rate = 0.1});
  // end snippet
  EXPECT_NEAR(
      weight_after(embedding), 0.5 - 0.1 * 2 / std::sqrt(4.1), kTolerance);
}

TEST_F(OptimReferenceTest, AdagradMomentum) {
  // snippet: AdagradMomentum
  // The accumulator is a moving average, so steps do not vanish.
  TPUEmbedding embedding(
      features,
      AdagradMomentum{.learning_rate = 0.01, .momentum = 0.9, .beta2 = 0.99});
  // end snippet
  EXPECT_NEAR(
      weight_after(embedding), 0.5 - 0.01 * 2 / std::sqrt(0.04), kTolerance);
}

TEST_F(OptimReferenceTest, ProximalAdagrad) {
  // snippet: ProximalAdagrad
  // Weights whose gradients stay below l1 become exactly zero.
  TPUEmbedding embedding(
      features,
      ProximalAdagrad{.learning_rate = 0.1, .l1_regularization_strength = 3.0});
  // end snippet
  const double rate = 0.1 / std::sqrt(4.1);
  EXPECT_NEAR(weight_after(embedding), 0.5 - rate * (2 + 3), kTolerance);
  EXPECT_EQ(weight_after(embedding, 40), 0.0);
}

TEST_F(OptimReferenceTest, RowWiseAdagrad) {
  // snippet: RowWiseAdagrad
  // For large tables.
  TPUEmbedding embedding(features, RowWiseAdagrad{.learning_rate = 0.1});
  // end snippet
  EXPECT_NEAR(weight_after(embedding), 0.5 - 0.1 * 2 / 2, kTolerance);
}

TEST_F(OptimReferenceTest, Adam) {
  // snippet: Adam
  // Corrects the bias, as Keras and torch::optim do.
  TPUEmbedding embedding(
      features, Adam{.learning_rate = 0.001, .bias_correction = true});
  // end snippet
  EXPECT_NEAR(weight_after(embedding), 0.5 - 0.001, kTolerance);
}

TEST_F(OptimReferenceTest, FTRL) {
  // snippet: FTRL
  // Weights that matter little become exactly zero.
  TPUEmbedding embedding(
      features, FTRL{.learning_rate = 0.1, .l1_regularization_strength = 1.0});
  // end snippet
  const double change = (std::sqrt(4.1) - std::sqrt(0.1)) / 0.1;
  const double linear = 2 - 0.5 * change;
  EXPECT_NEAR(
      weight_after(embedding),
      (std::clamp(linear, -1.0, 1.0) - linear) / (std::sqrt(4.1) / 0.1),
      kTolerance);
}

TEST_F(OptimReferenceTest, RMSprop) {
  // snippet: RMSprop
  TPUEmbedding embedding(
      features, RMSprop{.learning_rate = 0.01, .rho = 0.9, .momentum = 0.9});
  // end snippet
  EXPECT_NEAR(
      weight_after(embedding), 0.5 - 0.01 * 2 / std::sqrt(0.4), kTolerance);
}

TEST_F(OptimReferenceTest, Adadelta) {
  // snippet: Adadelta
  // The learning rate of the paper.
  TPUEmbedding embedding(features, Adadelta{.learning_rate = 1.0});
  // end snippet
  EXPECT_NEAR(
      weight_after(embedding),
      0.5 - 2 * std::sqrt(1e-7 / (0.05 * 4 + 1e-7)),
      kTolerance);
}

TEST_F(OptimReferenceTest, Lion) {
  // snippet: Lion
  // With decoupled weight decay, as in the paper.
  TPUEmbedding embedding(
      features,
      Lion{
          .learning_rate = 0.01,
          .weight_decay_factor = 0.1,
          .multiply_weight_decay_factor_by_learning_rate = true});
  // end snippet
  EXPECT_NEAR(
      weight_after(embedding), 0.5 - 0.01 * 0.1 * 0.5 - 0.01, kTolerance);
}

TEST_F(OptimReferenceTest, LAMB) {
  // snippet: LAMB
  TPUEmbedding embedding(
      features, LAMB{.learning_rate = 0.01, .weight_decay = 0.01});
  // end snippet
  // The step has the norm of the row times the learning rate.
  EXPECT_NEAR(weight_after(embedding), 0.5 - 0.01 * 0.5, kTolerance);
}

TEST_F(OptimReferenceTest, Adamax) {
  // snippet: Adamax
  TPUEmbedding embedding(
      features, Adamax{.learning_rate = 0.01, .beta_1 = 0.9, .beta_2 = 0.99});
  // end snippet
  EXPECT_NEAR(weight_after(embedding), 0.5 - 0.01, kTolerance);
}

TEST_F(OptimReferenceTest, Nadam) {
  // snippet: Nadam
  // The schedule_decay of torch.optim.NAdam.
  TPUEmbedding embedding(
      features, Nadam{.learning_rate = 0.01, .schedule_decay = 0.004});
  // end snippet
  const auto mu = [](int t) {
    return 0.9 * (1 - 0.5 * std::pow(0.96, 0.004 * t));
  };
  const double direction = mu(2) / (1 - mu(1) * mu(2)) * 0.2 + 2;
  EXPECT_NEAR(weight_after(embedding), 0.5 - 0.01 * direction / 2, kTolerance);
}

TEST_F(OptimReferenceTest, CustomOptimizer) {
  // snippet: CustomOptimizer
  TPUEmbedding embedding(
      features,
      CustomOptimizer{
          .learning_rate = 0.1,
          .rule = CustomRule("sign", [](CustomRows& rows) {
            rows.weights.sub_(rows.gradients.sign(), rows.learning_rate);
          })});
  // end snippet
  EXPECT_NEAR(weight_after(embedding, 2), 0.5 - 2 * 0.1, kTolerance);
}

TEST_F(OptimReferenceTest, CustomSlot) {
  // snippet: CustomSlot
  const CustomOptimizer momentum{
      .learning_rate = 0.1,
      .rule = CustomRule(
          "momentum",
          [](CustomRows& rows) {
            rows.slots[0].mul_(0.9).add_(rows.gradients);
            rows.weights.sub_(rows.slots[0], rows.learning_rate);
          }),
      .slots = {CustomSlot{.name = "momenta", .initial_value = 0.0}}};
  // end snippet
  TPUEmbedding embedding(features, momentum);
  EXPECT_NEAR(
      weight_after(embedding, 2), 0.5 - 0.1 * (2 + (0.9 * 2 + 2)), kTolerance);
}

TEST_F(OptimReferenceTest, CustomRows) {
  // snippet: CustomRows
  const CustomRule rule("decay", [](CustomRows& rows) {
    const auto step = rows.gradients + 0.01 * rows.weights;
    rows.weights.sub_(step, rows.learning_rate);
  });
  // end snippet
  CustomRows rows{
      .weights = torch::full({1, 2}, 0.5),
      .gradients = torch::full({1, 2}, 2.0),
      .learning_rate = 0.1};
  (*rule.function())(rows);
  test::expect_close(rows.weights, torch::full({1, 2}, 0.5 - 0.1 * 2.005));
}

TEST_F(OptimReferenceTest, SlotCreation) {
  // snippet: SlotCreation
  std::map<std::string, at::Tensor> slots;  // "accumulators": [10, 2]
  const SlotCreation keep_slots("keep_slots", [&](const SlotRequest& request) {
    slots[request.name] = torch::full(request.shape, request.initial_value);
    return slots[request.name];
  });
  TPUEmbedding embedding(features, Adagrad{.slot_creation = keep_slots});
  // end snippet
  EXPECT_EQ(slots.at("accumulators").sizes(), (at::IntArrayRef{10, 2}));
  weight_after(embedding);
  EXPECT_NEAR(
      slots.at("accumulators")[3][0].item<double>(), 0.1 + 4, kTolerance);
}

TEST_F(OptimReferenceTest, SpecGroup) {
  torch::nn::Linear tower(2, 1);
  const at::Tensor bias = torch::zeros({1}).requires_grad_();
  // snippet: SpecGroup
  const auto optimizer = make_optimizer(
      {SpecGroup{.spec = Adam{}, .parameters = tower->parameters()},
       SpecGroup{.spec = SGD{.learning_rate = 0.1}, .parameters = {bias}}});
  // end snippet
  const at::Tensor before = tower->weight.detach().clone();
  (tower->forward(torch::ones({1, 2})) + 2 * bias).sum().backward();
  optimizer->step();
  test::expect_close(bias, torch::full({1}, -0.1 * 2));
  EXPECT_FALSE(at::equal(tower->weight, before));
}

}  // namespace tessera::optim::reference_optim_test
