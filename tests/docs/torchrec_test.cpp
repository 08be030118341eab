// SPDX-License-Identifier: Apache-2.0
// The code of docs/torchrec.md, which check_docs.cmake compares with the page.
#include <tessera/tessera.h>
#include <torch/nn/modules/embedding.h>

#include "tests/test_util.h"

namespace optim = tessera::optim;
using tessera::FeatureConfig;

namespace torchrec_test {

// snippet: keyed_jagged
// The parts of a KeyedJaggedTensor: values of one key after the other, and
// lengths [keys * batch].
tessera::Features features_of(
    const std::vector<std::string>& keys,
    const torch::Tensor& values,
    const torch::Tensor& lengths) {
  const auto batch = lengths.size(0) / static_cast<int64_t>(keys.size());
  tessera::Features::Map features;
  int64_t begin = 0;
  for (const auto& key : keys) {
    const auto first = static_cast<int64_t>(features.size()) * batch;
    const auto own_lengths = lengths.narrow(0, first, batch);
    const auto count = own_lengths.sum().item<int64_t>();
    features.emplace_back(
        key,
        tessera::RaggedFeature::from_lengths(
            values.narrow(0, begin, count), own_lengths));
    begin += count;
  }
  return tessera::Features::map(std::move(features));
}
// end snippet

TEST(TorchrecPageTest, ALayerIsAnEmbeddingBagCollection) {
  // snippet: collection
  const auto t1 = tessera::make_table(
      {.name = "t1",
       .vocabulary_size = 10,
       .dim = 3,
       .combiner = tessera::Combiner::kSum,
       .initializer = tessera::initializers::Uniform{-0.3, 0.3}});
  const auto t2 = tessera::make_table(
      {.name = "t2",
       .vocabulary_size = 10,
       .dim = 4,
       .combiner = tessera::Combiner::kMean,
       .optimizer = optim::Adam{.learning_rate = 0.01}});  // its own
  tessera::TPUEmbedding collection(tessera::TPUEmbeddingOptions{
      .features =
          {{"f1", FeatureConfig{.table = t1}},
           {"f2", FeatureConfig{.table = t2}}},
      .optimizer = optim::RowWiseAdagrad{.learning_rate = 0.01}});

  const auto pooled = collection->forward(features_of(
      {"f1", "f2"},
      torch::tensor({0, 1, 2, 3, 4, 5, 6, 7}),
      torch::tensor({2, 0, 1, 1, 1, 3})));
  pooled["f1"];  // [3, 3], as KeyedTensor's ["f1"]
  const auto all = tessera::Concatenate()->forward(pooled);  // [3, 7], values()
  // end snippet
  const auto rows = collection->embedding_tables();
  EXPECT_EQ(all.sizes(), (at::IntArrayRef{3, 7}));
  tessera::test::expect_close(pooled["f1"][0], rows[t1][0] + rows[t1][1]);
  tessera::test::expect_close(pooled["f1"][1], torch::zeros({3}));
  tessera::test::expect_close(
      pooled["f2"][2], (rows[t2][5] + rows[t2][6] + rows[t2][7]) / 3);
}

TEST(TorchrecPageTest, ABagEqualsLibTorchsEmbeddingBag) {
  const auto t1 = tessera::make_table(
      {.name = "t1",
       .vocabulary_size = 10,
       .dim = 3,
       .combiner = tessera::Combiner::kSum});
  tessera::TPUEmbedding layer(tessera::TPUEmbeddingOptions{
      .features = {{"f1", FeatureConfig{.table = t1}}},
      .optimizer = optim::SGD{.learning_rate = 0.1}});
  const auto indices = torch::tensor({1, 1, 2, 9});
  const auto offsets = torch::tensor({0, 2, 2});
  const auto weights = torch::tensor({0.5F, 1.0F, 2.0F, 1.0F});
  // snippet: bag
  torch::nn::EmbeddingBag bag(
      torch::nn::EmbeddingBagOptions(10, 3).mode(torch::kSum));
  layer->update_embedding_table("t1", bag->weight);

  const auto theirs = bag->forward(indices, offsets, weights);
  const auto ours = layer->forward(
      {{"f1", tessera::RaggedFeature::from_offsets(indices, offsets)}},
      {{"f1", weights}});
  // end snippet
  tessera::test::expect_close(ours["f1"], theirs);
}

TEST(TorchrecPageTest, ADenseFeatureGivesTheRowOfEachId) {
  const auto table =
      tessera::make_table({.name = "t1", .vocabulary_size = 10, .dim = 3});
  const auto values = torch::tensor({0, 1, 2});
  const auto lengths = torch::tensor({2, 0, 1});
  // snippet: unpooled
  tessera::TPUEmbedding layer(tessera::TPUEmbeddingOptions{
      .features =
          {{"f1", FeatureConfig{.table = table}},
           {"f1_rows", FeatureConfig{.table = table}}},
      .optimizer = optim::SGD{}});
  const auto activations = layer->forward(
      {{"f1", tessera::RaggedFeature::from_lengths(values, lengths)},
       {"f1_rows", values}});
  activations["f1"];  // [bags, dim]
  activations["f1_rows"];  // [ids, dim]
  // end snippet
  const auto rows = activations["f1_rows"];
  EXPECT_EQ(rows.sizes(), (at::IntArrayRef{3, 3}));
  tessera::test::expect_close(activations["f1"][0], (rows[0] + rows[1]) / 2);
  tessera::test::expect_close(activations["f1"][2], rows[2]);
}

TEST(TorchrecPageTest, ClipsAndUpdatesTablesWithDenseWeights) {
  const auto users =
      tessera::make_table({.name = "users", .vocabulary_size = 10, .dim = 2});
  const std::vector<torch::Tensor> micro_batches{
      torch::tensor({1, 2}), torch::tensor({1, 3})};
  // snippet: combined
  tessera::TPUEmbedding embedding(tessera::TPUEmbeddingOptions{
      .features = {{"user", FeatureConfig{.table = users}}},
      .optimizer = optim::SGD{.learning_rate = 1.0},
      .apply = tessera::Apply::kOnStep});
  tessera::Combined optimizer(
      torch::optim::SGD(embedding->parameters(), 0.1), {embedding});
  optimizer.zero_grad();
  for (const auto& ids : micro_batches) {
    embedding->forward({{"user", ids}})["user"].sum().backward();
  }
  const double norm = optimizer.clip_grad_norm_(1.0);
  optimizer.step();
  // end snippet
  // Row 1 has a gradient of 2, rows 2 and 3 of 1, in both columns.
  EXPECT_NEAR(norm, std::sqrt(2 * (4.0 + 1.0 + 1.0)), 1e-5);
  EXPECT_EQ(embedding->iterations(), 1);
}

TEST(TorchrecPageTest, APlanHasAPlacementForEachTable) {
  const auto large = tessera::make_table(
      {.name = "large", .vocabulary_size = 1'000'000, .dim = 16});
  const auto small =
      tessera::make_table({.name = "small", .vocabulary_size = 7, .dim = 16});
  const tessera::Nest<FeatureConfig> features{
      {"history", FeatureConfig{.table = large}},
      {"weekday", FeatureConfig{.table = small}}};
  const optim::OptimizerSpec optimizer = optim::RowWiseAdagrad{};
  // snippet: plan
  const auto plan = tessera::distributed::plan_sharding(
      features,
      optimizer,
      {.ranks = 8, .batch_size = 1024, .bag_lengths = {{"history", 20}}});
  const tessera::ShardingOptions options{.placement = plan.placement()};
  // with a backend: tessera::distributed::sharded_strategy(backend, options)
  // end snippet
  using Kind = tessera::TablePlacement::Kind;
  EXPECT_EQ(options.placement.at("large").kind, Kind::kRowWise);
  EXPECT_EQ(options.placement.at("small").kind, Kind::kDataParallel);
}

}  // namespace torchrec_test
