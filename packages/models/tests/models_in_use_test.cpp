// SPDX-License-Identifier: Apache-2.0
// Dense layers and those of well-known models after a TPUEmbedding: training, copies, export.
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/embed_reduce.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <tessera/models/causal_self_attention.h>
#include <tessera/models/deep_fm.h>
#include <tessera/models/dice.h>
#include <tessera/models/din_attention.h>
#include <tessera/models/factorization_machine.h>
#include <tessera/models/matrix_factorization.h>
#include <tessera/models/mixture_of_experts.h>
#include <tessera/models/transformer_block.h>
#include <tessera/optim/make_optimizer.h>
#include <tessera/optim/optimizers/sgd.h>

#include "packages/export/tests/export_test_util.h"

namespace tessera::test::models_in_use_test {

TPUEmbedding make_embedding() {
  const auto users = make_table({.vocabulary_size = 20, .dim = 5});
  const auto items = make_table({.vocabulary_size = 30, .dim = 5});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features =
          {{"user", FeatureConfig{.table = users}},
           {"item", FeatureConfig{.table = items}},
           {"history",
            FeatureConfig{.table = items, .max_sequence_length = 3}}},
      .optimizer = optim::SGD{.learning_rate = 0.1}});
}

Features make_features() {
  return {
      {"user", int64s({1, 2, 3})},
      {"item", int64s({4, 5, 29})},
      {"history", ragged({{7, 8}, {}, {10, 3, 4, 5}})}};
}

Features other_features() {
  return {
      {"user", int64s({9, 8, 7, 6, 5})},
      {"item", int64s({0, 1, 2, 3, 4})},
      {"history", ragged({{}, {1, 2}, {5}, {6}, {7, 7, 7, 7}})}};
}

// A layer that is not built, and a forward() of it that returns one tensor.
struct UnbuiltLayer {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> forward;
};

// Every layer whose parameters get their sizes from the first input.
std::map<std::string, UnbuiltLayer> unbuilt_layers() {
  std::map<std::string, UnbuiltLayer> layers;
  const at::Tensor x = at::randn({6, 4});
  const auto add = [&](const std::string& name, auto layer, auto... inputs) {
    layers[name] = {layer.ptr(), [=]() mutable {
                      return at::Tensor(layer->forward(inputs...));
                    }};
  };
  const at::Tensor splits = int64s({0, 2, 6});
  add("MLP", MLP({.units = {3, 2}}), Nest<at::Tensor>(x));
  add("Cross", Cross(), x, x);
  add("low-rank Cross", Cross({.projection_dim = 2}), x, x);
  add("MultiLayerDCN", MultiLayerDCN({.projection_dim = 2}), x);
  add("Dice", Dice(), x);
  add("DINAttention with Dice",
      DINAttention({.hidden_units = {3}}),
      x,
      at::randn({6, 2, 4}),
      at::Tensor());
  add("DINAttention with PReLU",
      DINAttention({.hidden_units = {3}, .activation = DINActivation::kPRelu}),
      x,
      at::randn({6, 2, 4}),
      at::Tensor());
  add("DeepFM",
      DeepFM({.hidden_units = {3}}),
      Nest<at::Tensor>{{"a", x}, {"b", at::randn({6, 4})}});
  add("CausalSelfAttention", CausalSelfAttention(), x, splits);
  add("TransformerBlock", TransformerBlock(), x, splits);
  add("TransformerBlock with a filter",
      TransformerBlock(
          {.norm = NormOrder::kPost,
           .filter = SequenceFilterOptions{.num_frequencies = 1, .length = 4}}),
      x,
      splits);
  MMoE mixture(
      {.tasks = {"a", "b"},
       .num_experts = 2,
       .expert_units = {3},
       .tower_units = {2}});
  layers["MMoE"] = {mixture.ptr(), [=]() mutable {
                      const auto results = mixture->forward(x);
                      return results["a"] + results["b"];
                    }};
  return layers;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone());
  }
  return copies;
}

TEST(UnbuiltLayersTest, TrainWithAnOptimizerMadeBeforeTheFirstForward) {
  for (auto& [name, layer] : unbuilt_layers()) {
    SCOPED_TRACE(name);
    const std::vector<at::Tensor> before = layer.module->parameters();
    ASSERT_FALSE(before.empty());
    torch::optim::SGD optimizer(before, 1.0);
    const auto own = optim::make_optimizer(optim::Adagrad{}, before);
    const at::Tensor result = layer.forward();
    (result * at::randn(result.sizes())).sum().backward();
    const std::vector<at::Tensor> after = layer.module->parameters();
    const std::vector<at::Tensor> initial = copies_of(after);
    ASSERT_EQ(after.size(), before.size());
    optimizer.step();
    bool has_moved = true;
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(after[i].is_same(before[i])) << i;
      EXPECT_GT(after[i].numel(), 0) << i;
      ASSERT_TRUE(after[i].grad().defined()) << i;
      EXPECT_TRUE(at::equal(after[i], initial[i] - after[i].grad())) << i;
      has_moved = has_moved && !at::equal(after[i], initial[i]);
    }
    EXPECT_TRUE(has_moved);
    const std::vector<at::Tensor> moved = copies_of(after);
    own->step();
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_FALSE(at::equal(after[i], moved[i])) << i;
    }
  }
}

TEST(UnbuiltLayersTest, StayFrozenAndKeepTheirDtype) {
  for (auto& [name, layer] : unbuilt_layers()) {
    SCOPED_TRACE(name);
    for (at::Tensor& parameter : layer.module->parameters()) {
      parameter.requires_grad_(false);
    }
    {
      const c10::InferenceMode inference;
      layer.forward();
    }
    for (const at::Tensor& parameter : layer.module->parameters()) {
      EXPECT_FALSE(parameter.requires_grad());
      EXPECT_FALSE(parameter.is_inference());
    }
  }
  MLP layer(MLPOptions{.units = {2}});
  layer->to(at::kDouble);
  layer->build(PartialShape{std::nullopt, 3});
  EXPECT_EQ(layer->parameters()[0].scalar_type(), at::kDouble);
}

TEST(UnbuiltLayersTest, AreCopiedAndSaved) {
  const auto layers = unbuilt_layers();
  for (const auto& [name, layer] : layers) {
    SCOPED_TRACE(name);
    const auto copy = layer.module->clone();
    const auto parameters = layer.module->named_parameters();
    EXPECT_EQ(copy->named_parameters().keys(), parameters.keys());
    for (const auto& parameter : copy->named_parameters()) {
      EXPECT_FALSE(parameter.value().is_same(parameters[parameter.key()]));
    }
    // The archive of a layer that is not built has no parameters.
    auto other = copy;
    copy_by_archive(layer.module, other);
    EXPECT_CONTAINS(summary(*layer.module), "not built");
  }
}

void expect_learns(torch::nn::Sequential model, const Features& features) {
  const auto loss_of = [&] {
    return (model->forward(features) - 1).square().mean();
  };
  const at::Tensor before = loss_of();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    loss_of().backward();
    optimizer.step();
  }
  EXPECT_LT(loss_of().item<float>(), 0.9 * before.item<float>());
  auto copy =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  EXPECT_TRUE(at::equal(
      copy->forward<at::Tensor>(features),
      model->forward<at::Tensor>(features)));
}

TEST(ModelsInUseTest, ModelsLearnAfterTPUEmbedding) {
  expect_learns(
      torch::nn::Sequential(make_embedding(), FactorizationMachine()),
      make_features());
  expect_learns(
      torch::nn::Sequential(
          make_embedding(), DeepFM(DeepFMOptions{.hidden_units = {8}})),
      make_features());
  expect_learns(
      torch::nn::Sequential(
          TPUEmbedding(TPUEmbeddingOptions{
              .features =
                  {{"user", feature_of("users", 20, 5)},
                   {"item", feature_of("items", 30, 5)}},
              .optimizer = optim::SGD{.learning_rate = 0.1}}),
          MatrixFactorization()),
      {{"user", int64s({1, 2, 3})}, {"item", int64s({4, 5, 29})}});
}

// A model with all layers.
struct RankerImpl : torch::nn::Module {
  explicit RankerImpl(const DINAttentionOptions& options) : attention(options) {
    register_module("embedding", embedding);
    register_module("factors", factors);
    register_module("fm", fm);
    register_module("deep", deep);
    register_module("attention", attention);
    register_module("experts", experts);
  }

  std::vector<at::Tensor> forward(const Features& features) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    const at::Tensor interest = attention->forward(
        rows["item"], rows["history"], history_lengths(features["history"]));
    const Nest<at::Tensor> tasks = experts->forward(
        {{"user", rows["user"]}, {"item", rows["item"]}, {"own", interest}});
    return {
        factors->forward({{"user", rows["user"]}, {"item", rows["item"]}}),
        fm->forward(rows),
        deep->forward(rows),
        interest,
        tasks["click"],
        tasks["buy"]};
  }

  TPUEmbedding embedding = make_embedding();
  MatrixFactorization factors{MatrixFactorizationOptions{.global_mean = 3.5}};
  FactorizationMachine fm;
  DeepFM deep{DeepFMOptions{.hidden_units = {6}}};
  DINAttention attention;
  MMoE experts{MMoEOptions{
      .tasks = {"click", "buy"},
      .num_experts = 2,
      .expert_units = {4}}};
};
TORCH_MODULE(Ranker);

// In training mode, so that the running statistics of Dice differ from the first ones.
Ranker make_ranker(const DINAttentionOptions& options) {
  Ranker model(options);
  model->forward(make_features());
  return model;
}

// Relu and sigmoid are single operators.
std::vector<DINAttentionOptions> attention_options() {
  return {
      {.hidden_units = {6, 4}, .activation = DINActivation::kPRelu},
      {.hidden_units = {6},
       .activation = DINActivation::kDice,
       .use_softmax = true}};
}

// Exports each model, and compares what `run` gives for its file with forward().
void expect_same_scores(
    const std::function<
        std::vector<at::Tensor>(const Ranker&, const std::string&)>& run) {
  for (const DINAttentionOptions& options : attention_options()) {
    SCOPED_TRACE(to_string(options.activation));
    Ranker model = make_ranker(options);
    const std::vector<at::Tensor> actual = run(model, new_file());
    const at::NoGradGuard no_grad;
    model->eval();
    const auto expected = model->forward(other_features());
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      expect_close(actual[i], expected[i]);
    }
  }
}

TEST(ModelsInUseTest, TorchScriptGivesTheSameScores) {
  expect_same_scores([](const Ranker& model, const std::string& path) {
    export_torchscript(model, path, {.features = make_features()});
    return torch::jit::load(path)
        .forward({to_dict(all_parts_of(other_features()))})
        .toTensorVector();
  });
}

TEST(ModelsInUseTest, Pt2GivesTheSameScores) {
  expect_same_scores([](const Ranker& model, const std::string& path) {
    export_pt2(model, path, {.features = make_features()});
    return Pt2Program(path).run(arguments_of(other_features()));
  });
}

TEST(InteractionModelTest, InteractionLayersTrainInASequential) {
  TPUEmbedding embedding = make_embedding();
  const auto before = tables_of(embedding);
  torch::nn::Sequential model(
      embedding,
      DotInteraction(),
      Cross(),
      MultiLayerDCN(),
      torch::nn::Linear(10, 1));
  EXPECT_EQ(model->forward(make_features()).sizes(), at::IntArrayRef({3, 1}));
  expect_learns(model, make_features());
  EXPECT_FALSE(at::equal(tables_of(embedding)[0], before[0]));
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
}

TEST(InteractionModelTest, EmbedReduceRunsInASequential) {
  torch::nn::Sequential model(
      EmbedReduce(EmbedReduceOptions{.input_dim = 9, .output_dim = 4}),
      Cross(),
      torch::nn::Linear(4, 1));
  const Feature ids = ragged({{1, 2}, {8}});
  const std::optional<Feature> weights = floats({1, 2, 3});
  EXPECT_EQ(model->forward(ids).sizes(), at::IntArrayRef({2, 1}));
  EXPECT_EQ(model->forward(ids, weights).sizes(), at::IntArrayRef({2, 1}));
}

// A model with all interaction layers. EmbedReduce looks up ids that are not
// features of the embedding.
struct InteractionsImpl : torch::nn::Module {
  explicit InteractionsImpl(const DotInteractionOptions& options)
      : dots(options) {
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
                25 + 4 + 3 + (options.skip_gather ? 36 : 15), 1)));
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
TORCH_MODULE(Interactions);

TEST(InteractionModelTest, ExportedModelsGiveTheSameScores) {
  for (const DotInteractionOptions& options :
       {DotInteractionOptions{}, DotInteractionOptions{.skip_gather = true}}) {
    Interactions model(options);
    const std::string path = new_file();
    export_torchscript(
        model,
        path,
        {.features = make_features(),
         .inputs = {
             at::randn({3, 5}),
             int64s({1, 2, 3, 4, 5, 6}).view({3, 2}),
             at::randn({3, 2})}});
    torch::jit::Module loaded = torch::jit::load(path);
    const at::NoGradGuard no_grad;
    model->eval();
    const at::Tensor prices = at::randn({5, 5});
    // The example of the export had 3 rows.
    const at::Tensor tags = int64s({1, 2, 3, 4, 5, 6, 7, 8, 0, 1}).view({5, 2});
    const at::Tensor weights = at::randn({5, 2});
    expect_close(
        loaded
            .forward(
                {to_dict(all_parts_of(other_features())),
                 prices,
                 tags,
                 weights})
            .toTensor(),
        model->forward(other_features(), prices, tags, weights));
  }
}

}  // namespace tessera::test::models_in_use_test
