// SPDX-License-Identifier: Apache-2.0
// The interaction layers in models: Sequential, training, export.
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/embed_reduce.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <tessera/optim/optimizers/sgd.h>

#include "packages/export/tests/export_test_util.h"

namespace tessera::interaction_model_test {

using namespace test;  // NOLINT(google-build-using-namespace)

TPUEmbedding make_embedding() {
  const auto users = make_table({.vocabulary_size = 20, .dim = 4});
  const auto items = make_table({.vocabulary_size = 30, .dim = 4});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features =
          {{"user", FeatureConfig{.table = users}},
           {"item", FeatureConfig{.table = items}},
           {"recent", FeatureConfig{.table = items, .max_sequence_length = 2}}},
      .optimizer = optim::SGD{.learning_rate = 0.1}});
}

Features make_features() {
  return {
      {"user", int64s({1, 2, 3})},
      {"item", int64s({4, 5, 29})},
      {"recent", ragged({{7, 8}, {}, {10, 3, 4}})}};
}

Features other_features() {
  return {
      {"user", int64s({9, 8, 7, 6, 5})},
      {"item", int64s({0, 1, 2, 3, 4})},
      {"recent", ragged({{}, {1, 2}, {5}, {6}, {7, 7}})}};
}

TEST(InteractionModelTest, InteractionLayersTrainInASequential) {
  TPUEmbedding embedding = make_embedding();
  torch::nn::Sequential model(
      embedding,
      DotInteraction(),
      Cross(),
      MultiLayerDCN(),
      torch::nn::Linear(6, 1));
  const Features features = make_features();
  const at::Tensor scores = model->forward(features);
  EXPECT_EQ(scores.sizes(), (std::vector<int64_t>{3, 1}));
  const auto before = test::tables_of(embedding);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  scores.square().sum().backward();
  optimizer.step();
  EXPECT_FALSE(at::equal(test::tables_of(embedding)[0], before[0]));
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
  const at::Tensor after = model->forward(features);
  EXPECT_LT(
      after.square().sum().item<float>(), scores.square().sum().item<float>());
  auto copy =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  EXPECT_TRUE(at::equal(copy->forward(features), after));
}

TEST(InteractionModelTest, EmbedReduceRunsInASequential) {
  torch::nn::Sequential model(
      EmbedReduce(EmbedReduceOptions{.input_dim = 9, .output_dim = 4}),
      Cross(),
      torch::nn::Linear(4, 1));
  const Feature ids = ragged({{1, 2}, {8}});
  const std::optional<Feature> weights = test::floats({1, 2, 3});
  EXPECT_EQ(model->forward(ids).sizes(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(model->forward(ids, weights).sizes(), (std::vector<int64_t>{2, 1}));
}

// A model with all interaction layers. EmbedReduce looks up ids that are not
// features of the embedding.
struct RankerImpl : torch::nn::Module {
  explicit RankerImpl(const DotInteractionOptions& options) : dots(options) {
    register_module("embedding", embedding);
    register_module("dots", dots);
    register_module("crosses", crosses);
    register_module("low_rank", low_rank);
    register_module("tags", tags);
    register_module("single", single);
    register_module("mixed", mixed);
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            Cross(),
            torch::nn::Linear(
                16 + 4 + 3 + (options.skip_gather ? 25 : 10), 1)));
  }

  at::Tensor forward(
      const Features& features,
      const at::Tensor& prices,
      at::Tensor tag_ids,
      at::Tensor tag_weights) {
    const Nest<at::Tensor> activations = embedding->forward(features);
    const at::Tensor all = Concatenate()->forward(activations);
    const at::Tensor tag = tags->forward(tag_ids, tag_weights) +
        single->forward(tag_ids.select(1, 0));
    const at::Tensor pairs =
        dots->forward({{"embedded", activations}, {"prices", prices}});
    const at::Tensor crossed = low_rank->forward(crosses->forward(all));
    const at::Tensor mix = mixed->forward({{"all", all}, {"prices", prices}});
    return tower->forward(at::cat({pairs, crossed, tag, mix}, 1)).squeeze(1);
  }

  TPUEmbedding embedding = make_embedding();
  DotInteraction dots;
  Cross crosses{
      CrossOptions{.diag_scale = 0.5, .preactivation = Activation::kSoftsign}};
  MultiLayerDCN low_rank{MultiLayerDCNOptions{.projection_dim = 2}};
  EmbedReduce tags{EmbedReduceOptions{.input_dim = 9, .output_dim = 4}};
  EmbedReduce single{EmbedReduceOptions{.input_dim = 9, .output_dim = 4}};
  MLP mixed{
      MLPOptions{.units = {6, 3}, .final_activation = Activation::kLinear}};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(Ranker);

TEST(InteractionModelTest, ExportedModelsGiveTheSameScores) {
  for (const DotInteractionOptions& options :
       {DotInteractionOptions{}, DotInteractionOptions{.skip_gather = true}}) {
    Ranker model(options);
    const std::string path = test::new_file();
    export_torchscript(
        model,
        path,
        {.features = make_features(),
         .inputs = {
             at::randn({3, 4}),
             int64s({1, 2, 3, 4, 5, 6}).view({3, 2}),
             at::randn({3, 2})}});
    torch::jit::Module loaded = torch::jit::load(path);
    const at::NoGradGuard no_grad;
    model->eval();
    const at::Tensor prices = at::randn({5, 4});
    // The example of the export had 3 rows.
    const at::Tensor tags = int64s({1, 2, 3, 4, 5, 6, 7, 8, 0, 1}).view({5, 2});
    const at::Tensor weights = at::randn({5, 2});
    test::expect_close(
        loaded
            .forward(
                {test::to_dict(test::all_parts_of(other_features())),
                 prices,
                 tags,
                 weights})
            .toTensor(),
        model->forward(other_features(), prices, tags, weights));
  }
}

}  // namespace tessera::interaction_model_test
