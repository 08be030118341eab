// SPDX-License-Identifier: Apache-2.0
// Batches of the same structure, which the layer reads by a plan.
#include "tests/layers/layer_test_util.h"

namespace tessera::test::planned_batches_test {

TPUEmbedding make_layer() {
  const auto table = [](const char* name) {
    return make_table(
        {.name = name,
         .vocabulary_size = 50,
         .dim = 20,
         .combiner = Combiner::kMean});
  };
  const TablePtr shared = table("shared");
  return layer_of(
      features_of(
          {{"user", table("user")}, {"clicks", shared}, {"likes", shared}}),
      optim::Adagrad{.learning_rate = 0.5});
}

Features random_batch(int64_t size) {
  const at::Tensor lengths = at::randint(0, 4, {size}, at::kLong);
  return {
      {"user", at::randint(0, 50, {size}, at::kInt)},
      {"clicks",
       RaggedFeature::from_lengths(
           at::randint(0, 50, {lengths.sum().item<int64_t>()}, at::kLong),
           lengths)},
      {"likes", at::randint(0, 50, {size, 2}, at::kLong)}};
}

// Another structure, which replaces the plan of the layer.
void forward_one_example(TPUEmbedding& layer) {
  const at::NoGradGuard no_grad;
  layer->forward(random_batch(1));
}

std::vector<at::Tensor> forward_and_step(
    TPUEmbedding& layer,
    const Features& features) {
  std::vector<at::Tensor> activations = layer->forward(features).flatten();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& activation : activations) {
    gradients.push_back(at::ones_like(activation));
  }
  torch::autograd::backward(activations, gradients);
  return activations;
}

TEST(PlannedBatchesTest, GiveTheSameNumbersAsWithoutAPlan) {
  TPUEmbedding planned = make_layer();
  TPUEmbedding unplanned = make_layer();
  for (int i = 0; i < 10; ++i) {
    const Features features = random_batch(16);
    forward_one_example(unplanned);
    const auto actual = forward_and_step(planned, features);
    const auto expected = forward_and_step(unplanned, features);
    for (size_t j = 0; j < actual.size(); ++j) {
      EXPECT_TENSOR_EQ(actual[j], expected[j]) << "feature " << j;
    }
    expect_same_tables(planned, tables_of(unplanned));
  }
}

TEST(PlannedBatchesTest, WaitForTheBackwardPassOfEarlierOnes) {
  TPUEmbedding together = make_layer();
  TPUEmbedding one_by_one = make_layer();
  std::vector<Features> batches;
  for (int i = 0; i < 4; ++i) {
    batches.push_back(random_batch(8));
  }
  // The bags of three batches are in use at the same time.
  together->forward(batches[0]);
  std::vector<std::vector<at::Tensor>> activations;
  for (int i = 1; i < 4; ++i) {
    activations.push_back(together->forward(batches[i]).flatten());
  }
  one_by_one->forward(batches[0]);
  for (int i = 1; i < 4; ++i) {
    const auto ones = [](const std::vector<at::Tensor>& tensors) {
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& tensor : tensors) {
        gradients.push_back(at::ones_like(tensor));
      }
      return gradients;
    };
    torch::autograd::backward(activations[i - 1], ones(activations[i - 1]));
    forward_one_example(one_by_one);
    forward_and_step(one_by_one, batches[i]);
    expect_same_tables(together, tables_of(one_by_one));
  }
}

TEST(PlannedBatchesTest, HaveTheErrorsOfOtherBatches) {
  TPUEmbedding layer(
      features_of(
          {{"a", numbered_table("t", 4, 2)}, {"b", numbered_table("u", 4, 2)}}),
      optim::SGD{});
  const at::Tensor ids = int64s({1, 2});
  for (int i = 0; i < 3; ++i) {
    layer->forward({{"a", ids}, {"b", ragged({{3}, {0}})}});
    EXPECT_INDEX_ERROR(
        (layer->forward({{"a", int64s({1, 4})}, {"b", ragged({{3}, {0}})}})),
        "[feature 'a'] table 't' has ids in [0, 4), but got 4 at position 1");
    layer->forward({{"a", ids}, {"b", ragged({{3}, {0}})}});
    EXPECT_VALUE_ERROR(
        (layer->forward(
            {{"a", ids},
             {"b",
              RaggedFeature{
                  .values = int64s({1, 2}),
                  .row_splits = int64s({0, 2, 1})}}})),
        "[feature 'b'] row_splits must not decrease");
    EXPECT_VALUE_ERROR(
        (layer->forward({{"a", ids}})), "missing entry 'b'. Got: a");
  }
}

TEST(PlannedBatchesTest, KnowTheShapesOfALaterBuild) {
  TPUEmbedding layer(
      features_of({{"a", numbered_table("t", 4, 2)}}), optim::SGD{});
  layer->forward({{"a", int64s({1, 2})}});
  layer->build(3);
  EXPECT_VALUE_ERROR(
      (layer->forward({{"a", int64s({1, 2})}})),
      "inconsistent shape: the output shape is set to [3]");
  layer->forward({{"a", int64s({1, 2, 3})}});
}

TEST(PlannedBatchesTest, MayBeFollowedByOneWithWeights) {
  TPUEmbedding layer(
      features_of({{"a", numbered_table("t", 4, 2)}}), optim::SGD{});
  const Features features{{"a", ragged({{1, 2}, {3}})}};
  const at::Tensor sums = floats({3, 3, 3, 3}).view({2, 2});
  const at::Tensor weighted = floats({5, 5, 9, 9}).view({2, 2});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TENSOR_EQ(layer->forward(features)["a"], sums);
    EXPECT_TENSOR_EQ(
        layer->forward(features, {{"a", floats({1, 2, 3})}})["a"], weighted);
  }
}

TEST(PlannedBatchesTest, MayBeFollowedBySomeOfTheFeatures) {
  TPUEmbedding layer = make_layer();
  const at::NoGradGuard no_grad;
  const Features features = random_batch(4);
  const Nest<at::Tensor> all = layer->forward(features);
  for (int i = 0; i < 3; ++i) {
    const auto some = layer->forward({{"likes", features.at("likes")}});
    EXPECT_EQ(some.size(), 1);
    EXPECT_TENSOR_EQ(some["likes"], all["likes"]);
    EXPECT_TENSOR_EQ(layer->forward(features)["clicks"], all["clicks"]);
  }
}

}  // namespace tessera::test::planned_batches_test
