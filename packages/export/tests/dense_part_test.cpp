// SPDX-License-Identifier: Apache-2.0
// export_dense_pt2(): the part of a model that computes of activations.
#include <tessera/export/with_one_user.h>
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/models/din_attention.h>

#include "packages/export/tests/export_test_util.h"

#include <ATen/record_function.h>

namespace tessera::test::dense_part_test {

TPUEmbedding make_embedding() {
  const auto items =
      make_table({.name = "items", .vocabulary_size = 60, .dim = 4});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features = {
          {"user", feature_of("users", 20, 4)},
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

Texts names_of(const Pt2Signature& signature) {
  Texts names;
  for (const Pt2Value& input : signature.inputs) {
    names.push_back(input.path + ":" + input.part);
  }
  return names;
}

TEST(DensePartTest, GivesTheScoresOfTheModel) {
  Ranker model;
  const std::string path = new_file();
  const Pt2Signature signature =
      export_dense_pt2(model, path, example_of(3, 4), {"age", "price"});
  EXPECT_EQ(
      names_of(signature),
      listed("user:activations, item:activations, tags:activations, "
             "history:activations, history:row_splits, age:, price:"));
  EXPECT_EQ(signature.inputs[0].shape[0], 1);
  EXPECT_FALSE(signature.inputs[1].shape[0].has_value());

  const Pt2Program program(path);
  model->eval();
  const at::NoGradGuard no_grad;
  for (const int64_t items : {1, 2, 3, 100, 0}) {
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

// Gives the vector of a user from the mean of a history.
struct UserTowerImpl : torch::nn::Module {
  UserTowerImpl() {
    embedding = register_module("embedding", make_embedding());
    tower = register_module("tower", MLP(MLPOptions{.units = {4}}));
  }

  at::Tensor forward(const Features& features, const at::Tensor& age) {
    const Nest<at::Tensor> rows = embedding->forward_partial(
        {{"user", features["user"]}, {"history", features["history"]}});
    const at::Tensor length =
        history_lengths(features["history"]).clamp_min(1).unsqueeze(1);
    return tower->forward(
        {{"user", rows["user"]},
         {"mean", rows["history"].sum(1) / length},
         {"age", age}});
  }

  TPUEmbedding embedding{nullptr};
  MLP tower{nullptr};
};
TORCH_MODULE(UserTower);

TEST(DensePartTest, GivesTheVectorOfAUser) {
  UserTower model;
  const std::string path = new_file();
  const auto example_of = [](int64_t history) {
    return ExportExample{
        .features =
            {{"user", at::randint(20, {1}, at::kLong)},
             {"history", bags(1, history)}},
        .inputs = {at::rand({1, 1})}};
  };
  const Pt2Signature signature =
      export_dense_pt2(model, path, example_of(2), {"age"});
  EXPECT_EQ(
      names_of(signature),
      listed("user:activations, history:activations, history:row_splits, "
             "age:"));
  for (const Pt2Value& value : signature.inputs) {
    EXPECT_EQ(value.shape[0], value.part == "row_splits" ? 2 : 1);
  }
  ASSERT_EQ(signature.outputs.size(), 1U);
  EXPECT_EQ(
      signature.outputs[0].shape, (std::vector<std::optional<int64_t>>{1, 4}));

  const Pt2Program program(path);
  model->eval();
  const at::NoGradGuard no_grad;
  for (const int64_t history : {0, 2, 5, 9}) {
    const ExportExample example = example_of(history);
    const Nest<at::Tensor> rows =
        model->embedding->forward_partial(example.features);
    const at::Tensor actual =
        program
            .run(
                {rows["user"],
                 rows["history"],
                 std::get<RaggedFeature>(example.features["history"])
                     .row_splits,
                 example.inputs[0]})
            .at(0);
    const at::Tensor expected =
        model->forward(example.features, example.inputs[0]);
    EXPECT_TRUE(at::allclose(actual, expected, 1e-4, 1e-5)) << history;
  }
}

// A batch of training, in which the user has one row per example.
TEST(DensePartTest, TakesABatchOfTrainingWithOneUser) {
  Ranker model;
  const std::string path = new_file();
  const ExportExample batch{
      .features =
          {{"user", at::randint(20, {4}, at::kLong)},
           {"item", at::randint(60, {4}, at::kLong)},
           {"tags", bags(4, 2)},
           {"history", bags(4, 3)}},
      .inputs = {at::rand({4, 1}), at::rand({4, 2})}};
  // snippet: with_one_user
  const ExportExample example =
      with_one_user(batch, {"user", "history"}, /*user_inputs=*/{0});
  export_dense_pt2(model, path, example, {"age", "price"});
  // end snippet
  EXPECT_TRUE(at::equal(
      std::get<at::Tensor>(example.features["user"]),
      std::get<at::Tensor>(batch.features["user"]).narrow(0, 0, 1)));
  const auto history = std::get<RaggedFeature>(example.features["history"]);
  EXPECT_TRUE(at::equal(
      history.values,
      std::get<RaggedFeature>(batch.features["history"])
          .values.narrow(0, 0, 3)));
  EXPECT_EQ(history.row_splits.numel(), 2);
  const at::NoGradGuard no_grad;
  model->eval();
  EXPECT_TRUE(at::allclose(
      Pt2Program(path).run(arguments_of(model, example)).at(0),
      model->forward(example.features, example.inputs[0], example.inputs[1]),
      1e-4,
      1e-5));

  EXPECT_VALUE_ERROR(
      with_one_user(batch, {"users"}),
      "[with_one_user] user_features: the batch has no feature 'users'. Choose "
      "from user, item, tags, history.");
  EXPECT_VALUE_ERROR(
      with_one_user(example, {"user"}),
      "[with_one_user] 'user': expected at least two rows, one per example, but "
      "got 1. Pass a batch of training.");
  EXPECT_VALUE_ERROR(
      with_one_user(example, {"history"}),
      "'history': expected at least two rows, one per example, but got 1");
  EXPECT_THROW(with_one_user(batch, {}, {2}), c10::IndexError);
  EXPECT_VALUE_ERROR(
      with_one_user({}, {"user"}), "expected a batch of at least one row");
  EXPECT_VALUE_ERROR(
      with_one_user(
          {.features =
               {{"user", at::zeros({3}, at::kLong)},
                {"item", at::zeros({2}, at::kLong)}}},
          {"user"}),
      "[with_one_user] example.features 'user': the number of rows must be a "
      "multiple of the batch size 2, but it is 3");
  ExportExample weighted = batch;
  weighted.weights = {{"user", at::ones({4})}};
  EXPECT_VALUE_ERROR(
      with_one_user(weighted, {"user"}),
      "[with_one_user] expected a batch without weights");
}

TEST(DensePartTest, TheFileHasNoTables) {
  Ranker model;
  const std::string path = new_file();
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

std::map<std::string, at::Tensor> weights_of(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : model.named_parameters()) {
    weights[item.key()] = item.value();
  }
  for (const auto& item : model.named_buffers()) {
    weights[item.key()] = item.value();
  }
  return weights;
}

TEST(DensePartTest, ProgramsTakeOtherWeights) {
  Ranker model;
  const std::string path = new_file();
  const ExportExample example = example_of(3, 4);
  export_dense_pt2(model, path, example);
  const Pt2Program program(path);

  Ranker other;
  other->forward(example.features, example.inputs[0], example.inputs[1]);
  other->eval();
  const Pt2Program replaced = program.with_weights(weights_of(*other));
  const at::NoGradGuard no_grad;
  const at::Tensor expected =
      other->forward(example.features, example.inputs[0], example.inputs[1]);
  const std::vector<at::Tensor> arguments = arguments_of(other, example);
  EXPECT_TRUE(at::allclose(replaced.run(arguments)[0], expected, 1e-4, 1e-5));
  EXPECT_FALSE(at::allclose(program.run(arguments)[0], expected, 1e-4, 1e-5));

  std::map<std::string, at::Tensor> weights = weights_of(*other);
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
            .features = {{"user", feature_of("users", 20, 4)}}}));
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
      export_dense_pt2(TwoLayers(), new_file(), example);
  EXPECT_EQ(
      names_of(signature),
      listed("users.user:activations, items.user:activations, "
             "items.item:activations, items.tags:activations, "
             "items.history:activations, items.history:row_splits"));
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
  const std::string path = new_file();
  ExportExample example = example_of(3, 4);
  example.inputs.clear();
  EXPECT_VALUE_ERROR(
      export_dense_pt2(ReadsIds(), path, example),
      "[export_dense_pt2] forward() must compute from the activations");
  Ranker model;
  EXPECT_VALUE_ERROR(
      export_dense_pt2(model, path, example),
      "[export_dense_pt2] example.inputs: expected 2 tensors");
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

TEST(DensePartTest, ArgumentsThatDoNotFitAreNamed) {
  Ranker model;
  const std::string path = new_file();
  export_dense_pt2(model, path, example_of(3, 4), {"age", "price"});
  model->eval();
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> good = arguments_of(model, example_of(3, 4));
  const auto with = [&](size_t index, const at::Tensor& tensor) {
    std::vector<at::Tensor> arguments = good;
    arguments[index] = tensor;
    return arguments;
  };
  const Pt2Program program(path);
  EXPECT_VALUE_ERROR(
      program.run({good[0]}), "Program] expected 7 tensors, but got 1");
  EXPECT_VALUE_ERROR(
      program.run(with(0, good[0].expand({3, 4}))),
      "Program] input 'user' must have the shape [1, 4], but has [3, 4]");
  EXPECT_VALUE_ERROR(
      program.run(with(6, at::rand({2, 2}))),
      "Program] input 'price' must have the shape [s0, 2], but has [2, 2]: "
      "sizes of the same name must be equal in all inputs. Correct the batch.");
  EXPECT_VALUE_ERROR(
      program.run(with(1, at::rand({4}))), "the number of dimensions differs");
  EXPECT_VALUE_ERROR(
      program.run(with(1, at::Tensor())),
      "input 'item' must be a dense tensor on the cpu");
  EXPECT_TYPE_ERROR(
      program.run(with(5, at::rand({1, 1}, at::kDouble))),
      "input 'age' must have the dtype Float, but has Double");
  EXPECT_NO_THROW(program.run(good));
}

// Counts the rows that matrix products of the user's part have.
class ProductRows {
 public:
  ProductRows()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(begin).needsInputs(true))) {
    rows.clear();
  }
  ~ProductRows() {
    at::removeCallback(handle_);
  }
  ProductRows(const ProductRows&) = delete;
  ProductRows& operator=(const ProductRows&) = delete;

  static inline std::vector<int64_t> rows = {};

 private:
  static std::unique_ptr<at::ObserverContext> begin(
      const at::RecordFunction& function) {
    const std::string name = function.name();
    if (name == "aten::mm" || name == "aten::addmm") {
      const auto inputs = function.inputs();
      rows.push_back(inputs[name == "aten::mm" ? 0 : 1].toTensor().size(0));
    }
    return nullptr;
  }

  at::CallbackHandle handle_;
};

TEST(DensePartTest, ProgramsComputeThePartOfTheUserOnce) {
  Ranker model;
  const std::string path = new_file();
  export_dense_pt2(model, path, example_of(3, 4), {"age", "price"});
  const Pt2Program program(path);
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> arguments =
      arguments_of(model, example_of(100, 4));
  const ProductRows observer;
  program.run(arguments);
  // Cross and the tower multiply the user's columns alone.
  EXPECT_GE(
      std::count(ProductRows::rows.begin(), ProductRows::rows.end(), 1), 2);
  EXPECT_GE(
      std::count(ProductRows::rows.begin(), ProductRows::rows.end(), 100), 2);
}

// A model with odd names, a weight that two modules have, and a module that is there twice.
struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    embedding = register_module("embedding", make_embedding());
    first = register_module("first-part", torch::nn::Linear(4, 4));
    again = register_module("again", first);
    tied = register_parameter("tied", first->weight);
    counts = register_buffer("counts", at::ones({1}, at::kLong));
  }
  at::Tensor forward(const Features& features, const at::Tensor& self) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    const at::Tensor user = at::linear(rows["user"] + rows["tags"], tied);
    return (first->forward(again->forward(rows["item"])) * user *
            rows["history"].sum(1))
               .sum(1) *
        counts +
        self.squeeze(1) + at::zeros(at::IntArrayRef(), self.options());
  }
  TPUEmbedding embedding{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::Linear again{nullptr};
  at::Tensor tied;
  at::Tensor counts;
};
TORCH_MODULE(Shared);

TEST(DensePartTest, ProgramsKeepSharedWeightsTogether) {
  const auto example_with = [](int64_t items) {
    ExportExample example = example_of(items, 4);
    example.inputs = {at::rand({items, 1})};
    return example;
  };
  Shared model;
  const std::string path = new_file();
  const Pt2Signature signature =
      export_dense_pt2(model, path, example_with(3), {"self"});
  EXPECT_EQ(signature.inputs.back().path, "self");
  for (const std::string& name :
       listed("torch, Tensor, CONSTANTS, ops, forward, annotate, int, float, "
              "bool")) {
    EXPECT_NO_THROW(export_dense_pt2(model, path, example_with(3), {name}))
        << name;
  }
  const Pt2Program program(path);
  Texts names;
  for (const auto& [name, tensor] : program.state_dict()) {
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  const Texts expected_names{"counts", "first-part.bias", "tied"};
  EXPECT_EQ(names, expected_names);

  const at::NoGradGuard no_grad;
  model->first->weight.add_(0.5);
  model->counts.fill_(3);
  const ExportExample example = example_with(6);
  const Nest<at::Tensor> rows = model->embedding->forward(example.features);
  const at::Tensor expected =
      model->forward(example.features, example.inputs[0]);
  const at::Tensor actual =
      program.with_weights(weights_of(*model))
          .run(
              {rows["user"],
               rows["item"],
               rows["tags"],
               rows["history"],
               std::get<RaggedFeature>(example.features["history"]).row_splits,
               example.inputs[0]})[0];
  EXPECT_TRUE(at::allclose(actual, expected, 1e-4, 1e-5));
}

}  // namespace tessera::test::dense_part_test
