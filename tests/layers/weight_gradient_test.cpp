// SPDX-License-Identifier: Apache-2.0
// Gradients of per-id weights in special cases: dropped ids, zero rows, zero
// denominators, unused features.
#include "tests/layers/layer_test_util.h"

namespace tessera::test::weight_gradient_test {

class WeightGradientTest : public testing::TestWithParam<Strategy> {
 protected:
  TPUEmbedding layer(Combiner combiner) const {
    const auto table = make_table(
        {.name = "t",
         .vocabulary_size = 4,
         .dim = 2,
         .combiner = combiner,
         .initializer = initializers::RowId{.offset = 1}});
    return TPUEmbedding(TPUEmbeddingOptions{
        .features =
            {{"a",
              FeatureConfig{.table = table, .out_of_range = OutOfRange::kZero}},
             {"b", FeatureConfig{.table = table}}},
        .optimizer = optim::SGD{.learning_rate = 1.0},
        .strategy = GetParam()});
  }
};

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    WeightGradientTest,
    strategies(),
    strategy_name);

TEST_P(WeightGradientTest, IsZeroForDroppedIds) {
  const RaggedFeature ids = ragged({{0, -1, 1}, {-1}, {2, 3}});
  for (const Combiner combiner : {Combiner::kMean, Combiner::kSqrtn}) {
    SCOPED_TRACE(to_string(combiner));
    const at::Tensor weights = floats({1, 5, 1, 5, -1, 3}).requires_grad_();
    layer(combiner)
        ->forward(
            {{"a", ids}, {"b", ids}},
            {{"a", weights}, {"b", std::nullopt}})["a"]
        .sum()
        .backward();
    // Both columns of bag 0 are (w0 * 1 + w2 * 2) / (w0 + w2), or the same sum
    // over sqrt(w0^2 + w2^2). A bag of one id does not depend on its weight.
    const float denominator =
        combiner == Combiner::kMean ? 2.0F : std::sqrt(2.0F);
    const at::Tensor expected =
        2 * floats({1 - 1.5, 0, 2 - 1.5, 0, 0, 0}) / denominator;
    expect_close(weights.grad(), expected);
  }
}

TEST_P(WeightGradientTest, WeightsOfZeroRowsCountInTheDenominator) {
  const RaggedFeature ids = ragged({{0, 9, 1}});
  const at::Tensor weights = floats({1, 1, 2}).requires_grad_();
  const auto activations = layer(Combiner::kMean)
                               ->forward(
                                   {{"a", ids}, {"b", ragged({{}})}},
                                   {{"a", weights}, {"b", std::nullopt}});
  expect_close(activations["a"], floats({1, 2}, {1.25, 1.25}));
  activations["a"].sum().backward();
  expect_close(
      weights.grad(),
      floats({2 * (1 - 1.25F) / 4, -2 * 1.25F / 4, 2 * (2 - 1.25F) / 4}));
}

TEST_P(WeightGradientTest, IsZeroForAZeroDenominator) {
  // Weights may cancel or all be zero if they are not validated.
  for (const Combiner combiner : {Combiner::kMean, Combiner::kSqrtn}) {
    SCOPED_TRACE(to_string(combiner));
    const auto table = make_table(
        {.name = "t",
         .vocabulary_size = 4,
         .dim = 2,
         .combiner = combiner,
         .initializer = initializers::RowId{.offset = 1}});
    TPUEmbedding layer = layer_of(
        FeatureConfig{.table = table, .validate_weights_and_indices = false},
        optim::SGD{.learning_rate = 1.0},
        {.strategy = GetParam()});
    const auto before = tables_of(layer);
    const at::Tensor weights =
        (combiner == Combiner::kMean ? floats({1, -1}) : floats({0, 0}))
            .requires_grad_();
    const Weights nest = std::optional<Feature>(weights);
    const at::Tensor activation = layer->forward(ragged({{0, 3}}), nest).leaf();
    EXPECT_TENSOR_EQ(activation, at::zeros({1, 2}));
    activation.sum().backward();
    EXPECT_TENSOR_EQ(weights.grad(), at::zeros({2}));
    expect_same_tables(layer, before);
    if (!GetParam().is_fused()) {
      EXPECT_TENSOR_EQ(layer->parameters()[0].grad(), at::zeros({4, 2}));
    }
  }
}

TEST_P(WeightGradientTest, IsTheRowForAZeroWeightInASum) {
  const at::Tensor weights = floats({0, -2}).requires_grad_();
  const RaggedFeature ids = ragged({{3, 1}});
  const at::Tensor activation =
      layer(Combiner::kSum)
          ->forward({{"a", ids}, {"b", ids}}, {{"a", weights}})["a"];
  expect_close(activation, floats({1, 2}, {-4, -4}));
  activation.sum().backward();
  expect_close(weights.grad(), floats({8, 4}));
}

TEST_P(WeightGradientTest, FlowsIntoTheInputsOfComputedWeights) {
  const RaggedFeature ids = ragged({{0, 1}, {2}});
  const at::Tensor raw = at::zeros({3}, at::kDouble).requires_grad_();
  const at::Tensor weights = raw.exp();
  const auto activations =
      layer(Combiner::kSum)
          ->forward(
              {{"a", ids}, {"b", ids}},
              {{"a", weights}, {"b", RaggedFeature{weights, ids.row_splits}}});
  (activations["a"].sum() + 3 * activations["b"].sum()).backward();
  expect_close(raw.grad(), floats({8, 16, 24}));
}

TEST_P(WeightGradientTest, IsZeroForAnUnusedFeature) {
  const RaggedFeature ids = ragged({{0, 1}});
  const at::Tensor weights = at::ones({2}).requires_grad_();
  layer(Combiner::kMean)
      ->forward(
          {{"a", ids}, {"b", ids}}, {{"a", weights}, {"b", std::nullopt}})["b"]
      .sum()
      .backward();
  EXPECT_TENSOR_EQ(weights.grad(), at::zeros({2}));
}

TEST(FusedWeightGradientTest, GradientsOfWeightsAloneUpdateNoTable) {
  const auto table = make_table(
      {.name = "t",
       .vocabulary_size = 4,
       .dim = 2,
       .combiner = Combiner::kSum,
       .initializer = initializers::RowId{.offset = 1}});
  TPUEmbedding layer =
      layer_of(FeatureConfig{.table = table}, optim::SGD{.learning_rate = 1.0});
  const auto before = tables_of(layer);
  const at::Tensor weights = at::ones({2}).requires_grad_();
  const Weights nest = std::optional<Feature>(weights);
  const RaggedFeature ids = ragged({{0, 3}});

  const at::Tensor loss = layer->forward(ids, nest).leaf().sum();
  const auto gradient = torch::autograd::grad(
      {loss}, {weights}, /*grad_outputs=*/{}, /*retain_graph=*/true);
  expect_close(gradient[0], floats({2, 8}));
  expect_same_tables(layer, before);

  layer->virtual_variable().requires_grad_(false);
  layer->forward(ids, nest).leaf().sum().backward();
  expect_close(weights.grad(), floats({2, 8}));
  expect_same_tables(layer, before);
  EXPECT_EQ(layer->iterations(), 0);

  // The retained loss can still make an update, because none has used it.
  layer->virtual_variable().requires_grad_(true);
  loss.backward();
  EXPECT_EQ(layer->iterations(), 1);
}

}  // namespace tessera::test::weight_gradient_test
