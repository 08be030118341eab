// SPDX-License-Identifier: Apache-2.0
// export_dense_pt2(): the part of a model that computes of activations.
#include <tessera/export/export_pt2.h>
#include <tessera/layers/concatenate.h>
#include <tessera/layers/cross.h>
#include <tessera/layers/dot_interaction.h>
#include <tessera/layers/mlp.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/models/din_attention.h>

#include "packages/export/tests/export_test_util.h"
#include "tests/test_util.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

namespace tessera {
namespace dense_part_test {

TPUEmbedding make_embedding() {
  const auto items =
      make_table({.name = "items", .vocabulary_size = 60, .dim = 4});
  const auto users =
      make_table({.name = "users", .vocabulary_size = 20, .dim = 4});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features = {
          {"user", FeatureConfig{.table = users}},
          {"item", FeatureConfig{.table = items}},
          {"tags", FeatureConfig{.table = items}},
          {"history",
           FeatureConfig{.table = items, .max_sequence_length = 5}}}});
}

// A model with all layers that take one row beside many.
struct RankerImpl : torch::nn::Module {
  RankerImpl() {
    embedding = register_module("embedding", make_embedding());
    attention = register_module("attention", DINAttention());
    cross = register_module("cross", Cross());
    dots = register_module("dots", DotInteraction());
    tower = register_module("tower", MLP(MLPOptions{.units = {8, 1}}));
  }

  at::Tensor forward(
      const Features& features,
      const at::Tensor& age,
      const at::Tensor& price) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    const at::Tensor interest = attention->forward(
        rows["item"], rows["history"], history_lengths(features["history"]));
    const at::Tensor crossed =
        cross->forward({{"user", rows["user"]}, {"item", rows["item"]}});
    const at::Tensor products = dots->forward(
        {{"user", rows["user"]},
         {"item", rows["item"]},
         {"tags", rows["tags"]}});
    return at::sigmoid(tower->forward(
                           {{"age", age},
                            {"interest", interest},
                            {"crossed", crossed},
                            {"products", products},
                            {"price", price}}))
        .squeeze(1);
  }

  TPUEmbedding embedding{nullptr};
  DINAttention attention{nullptr};
  Cross cross{nullptr};
  DotInteraction dots{nullptr};
  MLP tower{nullptr};
};
TORCH_MODULE(Ranker);

RaggedFeature bags(int64_t rows, int64_t length) {
  return RaggedFeature::from_lengths(
      at::randint(60, {rows * length}, at::kLong),
      at::full({rows}, length, at::kLong));
}

ExportExample example_of(int64_t items, int64_t history) {
  return {
      .features =
          {{"user", at::randint(20, {1}, at::kLong)},
           {"item", at::randint(60, {items}, at::kLong)},
           {"tags", bags(items, 2)},
           {"history", bags(1, history)}},
      .inputs = {at::rand({1, 1}), at::rand({items, 2})}};
}

// The arguments of the program for this example.
std::vector<at::Tensor> arguments_of(
    Ranker& model,
    const ExportExample& example) {
  const Nest<at::Tensor> rows = model->embedding->forward(example.features);
  return {
      rows["user"],
      rows["item"],
      rows["tags"],
      rows["history"],
      std::get<RaggedFeature>(example.features["history"]).row_splits,
      example.inputs[0],
      example.inputs[1]};
}

TEST(DensePartTest, GivesTheScoresOfTheModel) {
  Ranker model;
  const std::string path = test::new_file();
  const Pt2Signature signature =
      export_dense_pt2(model, path, example_of(3, 4), {"age", "price"});
  std::vector<std::string> names;
  for (const Pt2Value& input : signature.inputs) {
    names.push_back(input.path + ":" + input.part);
  }
  const std::vector<std::string> expected_names{
      "user:activations",
      "item:activations",
      "tags:activations",
      "history:activations",
      "history:row_splits",
      "age:",
      "price:"};
  EXPECT_EQ(names, expected_names);
  EXPECT_EQ(signature.inputs[0].shape[0], 1);
  EXPECT_FALSE(signature.inputs[1].shape[0].has_value());

  const Pt2Program program(path);
  model->eval();
  const at::NoGradGuard no_grad;
  for (const int64_t items : {1, 2, 3, 100}) {
    for (const int64_t history : {0, 2, 5, 9}) {
      const ExportExample example = example_of(items, history);
      const at::Tensor expected = model->forward(
          example.features, example.inputs[0], example.inputs[1]);
      const at::Tensor actual = program.run(arguments_of(model, example)).at(0);
      EXPECT_TRUE(at::allclose(actual, expected, 1e-4, 1e-5))
          << items << " items, history of " << history;
    }
  }
}

TEST(DensePartTest, TheFileHasNoTables) {
  Ranker model;
  const std::string path = test::new_file();
  export_dense_pt2(model, path, example_of(3, 4));
  // The file holds no table, only the dense weights.
  size_t weights = 0;
  for (const auto& [name, tensor] : Pt2Program(path).state_dict()) {
    EXPECT_EQ(name.find("embedding"), std::string::npos) << name;
    weights += name.starts_with("constant_") ? 0 : 1;
  }
  EXPECT_EQ(
      weights,
      model->parameters().size() - model->embedding->parameters().size() +
          model->buffers().size());
}

std::map<std::string, at::Tensor> weights_of(const Ranker& model) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : model->named_parameters()) {
    weights[item.key()] = item.value();
  }
  for (const auto& item : model->named_buffers()) {
    weights[item.key()] = item.value();
  }
  return weights;
}

TEST(DensePartTest, ProgramsTakeOtherWeights) {
  Ranker model;
  const std::string path = test::new_file();
  const ExportExample example = example_of(3, 4);
  export_dense_pt2(model, path, example);
  const Pt2Program program(path);

  Ranker other;
  other->forward(example.features, example.inputs[0], example.inputs[1]);
  other->eval();
  const Pt2Program replaced = program.with_weights(weights_of(other));
  const at::NoGradGuard no_grad;
  const at::Tensor expected =
      other->forward(example.features, example.inputs[0], example.inputs[1]);
  const std::vector<at::Tensor> arguments = arguments_of(other, example);
  EXPECT_TRUE(at::allclose(replaced.run(arguments)[0], expected, 1e-4, 1e-5));
  EXPECT_FALSE(at::allclose(program.run(arguments)[0], expected, 1e-4, 1e-5));

  std::map<std::string, at::Tensor> weights = weights_of(other);
  weights["tower.linear_1.bias"] = at::randn({2});
  EXPECT_VALUE_ERROR(
      program.with_weights(weights),
      "[Pt2Program] with_weights: the weight 'tower.linear_1.bias' must be a "
      "dense tensor [1] on the cpu, but is [2] on cpu");
  weights["tower.linear_1.bias"] = at::randn({1}, at::kDouble);
  EXPECT_TYPE_ERROR(
      program.with_weights(weights),
      "the weight 'tower.linear_1.bias' must be Float, but is Double");
  weights.erase("tower.linear_1.bias");
  EXPECT_VALUE_ERROR(
      program.with_weights(weights),
      "expected the weight 'tower.linear_1.bias', but it is missing");
}

// With several embeddings, names begin with the path of the layer, as in a version.
struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    users = register_module(
        "users",
        TPUEmbedding(TPUEmbeddingOptions{
            .features = {
                {"user",
                 FeatureConfig{
                     .table = make_table(
                         {.name = "users",
                          .vocabulary_size = 20,
                          .dim = 4})}}}}));
    items = register_module("items", make_embedding());
  }
  at::Tensor forward(const Features& features) {
    const Nest<at::Tensor> user =
        users->forward(Features{{"user", features["user"]}});
    const Nest<at::Tensor> rows = items->forward(features);
    return (user["user"] * rows["item"] + rows["history"].sum(1) +
            rows["tags"] + rows["user"])
        .sum(1);
  }
  TPUEmbedding users{nullptr};
  TPUEmbedding items{nullptr};
};
TORCH_MODULE(TwoLayers);

TEST(DensePartTest, NamesOfSeveralLayersBeginWithTheirPaths) {
  ExportExample example = example_of(3, 4);
  example.inputs.clear();
  const Pt2Signature signature =
      export_dense_pt2(TwoLayers(), test::new_file(), example);
  std::vector<std::string> names;
  for (const Pt2Value& input : signature.inputs) {
    names.push_back(input.path + ":" + input.part);
  }
  const std::vector<std::string> expected{
      "users.user:activations",
      "items.user:activations",
      "items.item:activations",
      "items.tags:activations",
      "items.history:activations",
      "items.history:row_splits"};
  EXPECT_EQ(names, expected);
}

// forward() of a model that reads ids, which a program does not get.
struct ReadsIdsImpl : torch::nn::Module {
  ReadsIdsImpl() {
    embedding = register_module("embedding", make_embedding());
  }
  at::Tensor forward(const Features& features) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    return (rows["item"] * rows["user"]).sum(1) +
        std::get<at::Tensor>(features["item"]);
  }
  TPUEmbedding embedding{nullptr};
};
TORCH_MODULE(ReadsIds);

TEST(DensePartTest, RefusesWhatAProgramCannotCompute) {
  const std::string path = test::new_file();
  ExportExample example = example_of(3, 4);
  example.inputs.clear();
  EXPECT_VALUE_ERROR(
      export_dense_pt2(ReadsIds(), path, example),
      "[export_dense_pt2] forward() must compute from the activations");
  Ranker model;
  EXPECT_VALUE_ERROR(
      export_dense_pt2(model, path, example),
      "[export_dense_pt2] example.inputs: expected 2 tensors");
  EXPECT_VALUE_ERROR(
      export_dense_pt2(model, path, example_of(1, 4)),
      "[export_dense_pt2] example: expected features of one user and of 2 or "
      "more candidates, but all have one row");
  example = example_of(3, 4);
  example.inputs[1] = at::rand({2, 2});
  EXPECT_VALUE_ERROR(
      export_dense_pt2(model, path, example),
      "example.inputs[1]: expected 1 row, for numbers of the user, or 3, the "
      "number of candidates, but got [2, 2]");
  EXPECT_VALUE_ERROR(
      export_dense_pt2(model, path, example_of(3, 4), {"age"}),
      "input_names: expected 2 names");
  EXPECT_VALUE_ERROR(
      export_dense_pt2(model, path, example_of(3, 4), {"age", "age"}),
      "expected inputs of different names, but 'age' is there twice");
  EXPECT_VALUE_ERROR(
      export_dense_pt2(Ranker(nullptr), path, example), "an empty holder");
}

}  // namespace dense_part_test
}  // namespace tessera
