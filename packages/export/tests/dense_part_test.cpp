// SPDX-License-Identifier: Apache-2.0
// export_dense_pt2() and export_dense_torchscript(): the part of a model that computes of
// activations.
#include <tessera/common/json.h>
#include <tessera/common/json_text.h>
#include <tessera/export/with_one_user.h>
#include <tessera/layers/cross.h>
#include <tessera/layers/dot_interaction.h>
#include <tessera/layers/mlp.h>
#include <tessera/models/din_attention.h>

#include "packages/export/src/dense_program.h"
#include "packages/export/tests/export_test_util.h"
#include "src/common/checksum.h"
#include "tests/temporary_folder.h"

#include <ATen/record_function.h>

namespace tessera::dense_part_test {

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

// A batch of training, in which the user has one row per example.
TEST(DensePartTest, TakesABatchOfTrainingWithOneUser) {
  Ranker model;
  const std::string path = test::new_file();
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

using exporting::DenseProgram;

// LibTorch alone reads the file.
TEST(DensePartTest, TorchScriptGivesTheScoresOfTheModel) {
  Ranker model;
  const std::string path = test::new_file();
  const Pt2Signature signature =
      export_dense_torchscript(model, path, example_of(3, 4), {"age", "price"});
  const test::TemporaryFolder folder;
  const Pt2Signature of_pt2 = export_dense_pt2(
      model, folder / "ranker.pt2", example_of(3, 4), {"age", "price"});
  EXPECT_EQ(signature.inputs, of_pt2.inputs);
  ASSERT_EQ(signature.outputs.size(), 1U);
  EXPECT_EQ(signature.outputs[0].path, of_pt2.outputs[0].path);
  EXPECT_EQ(signature.outputs[0].dtype, of_pt2.outputs[0].dtype);
  EXPECT_EQ(signature.outputs[0].shape, of_pt2.outputs[0].shape);
  EXPECT_EQ(DenseProgram(path).signature(), signature);

  torch::jit::Module loaded = torch::jit::load(path);
  const DenseProgram program(path);
  EXPECT_TRUE(program.is_torchscript());
  model->eval();
  const at::NoGradGuard no_grad;
  for (const int64_t items : {1, 2, 3, 100, 0}) {
    for (const int64_t history : {0, 2, 5, 9}) {
      const ExportExample example = example_of(items, history);
      const at::Tensor expected = model->forward(
          example.features, example.inputs[0], example.inputs[1]);
      const std::vector<at::Tensor> arguments = arguments_of(model, example);
      const at::Tensor by_libtorch =
          loaded.forward({arguments.begin(), arguments.end()}).toTensor();
      EXPECT_TRUE(at::allclose(by_libtorch, expected, 1e-4, 1e-5))
          << items << " items, history of " << history;
      EXPECT_TRUE(
          at::allclose(program.run(arguments).at(0), expected, 1e-4, 1e-5))
          << items << " items, history of " << history;
    }
  }
}

TEST(DensePartTest, TorchScriptTakesOtherWeights) {
  Ranker model;
  const std::string path = test::new_file();
  const ExportExample example = example_of(3, 4);
  export_dense_torchscript(model, path, example);
  const DenseProgram program(path);
  EXPECT_EQ(
      program.state_dict().size(),
      model->parameters().size() - model->embedding->parameters().size() +
          model->buffers().size());
  for (const auto& [name, tensor] : program.state_dict()) {
    EXPECT_TRUE(at::equal(tensor, weights_of(model).at(name))) << name;
  }

  Ranker other;
  other->forward(example.features, example.inputs[0], example.inputs[1]);
  other->eval();
  const DenseProgram replaced = program.with_weights(weights_of(other));
  const at::NoGradGuard no_grad;
  const at::Tensor expected =
      other->forward(example.features, example.inputs[0], example.inputs[1]);
  const std::vector<at::Tensor> arguments = arguments_of(other, example);
  const at::Tensor before = program.run(arguments)[0];
  EXPECT_TRUE(at::allclose(replaced.run(arguments)[0], expected, 1e-4, 1e-5));
  EXPECT_FALSE(at::allclose(before, expected, 1e-4, 1e-5));
  EXPECT_TRUE(at::equal(program.run(arguments)[0], before));

  std::map<std::string, at::Tensor> weights = weights_of(other);
  weights["tower.linear_1.bias"] = at::randn({2});
  EXPECT_VALUE_ERROR(
      program.with_weights(weights),
      "[TorchScriptProgram] with_weights: the weight 'tower.linear_1.bias' must "
      "be a dense tensor [1] on the cpu, but is [2] on cpu");
  weights["tower.linear_1.bias"] = at::randn({1}, at::kDouble);
  EXPECT_TYPE_ERROR(
      program.with_weights(weights),
      "the weight 'tower.linear_1.bias' must be Float, but is Double");
  weights.erase("tower.linear_1.bias");
  EXPECT_VALUE_ERROR(
      program.with_weights(weights),
      "expected the weight 'tower.linear_1.bias', but it is missing");
}

// Both kinds of programs check their arguments in the same way.
TEST(DensePartTest, ArgumentsThatDoNotFitAreNamed) {
  Ranker model;
  const test::TemporaryFolder folder;
  const std::string pt2 = folder / "ranker.pt2";
  const std::string script = folder / "ranker.pt";
  export_dense_pt2(model, pt2, example_of(3, 4), {"age", "price"});
  export_dense_torchscript(model, script, example_of(3, 4), {"age", "price"});
  model->eval();
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> good = arguments_of(model, example_of(3, 4));
  const auto with = [&](size_t index, const at::Tensor& tensor) {
    std::vector<at::Tensor> arguments = good;
    arguments[index] = tensor;
    return arguments;
  };
  for (const std::string& path : {pt2, script}) {
    const DenseProgram program(path);
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
        program.run(with(1, at::rand({4}))),
        "the number of dimensions differs");
    EXPECT_VALUE_ERROR(
        program.run(with(1, at::Tensor())),
        "input 'item' must be a dense tensor on the cpu");
    EXPECT_TYPE_ERROR(
        program.run(with(5, at::rand({1, 1}, at::kDouble))),
        "input 'age' must have the dtype Float, but has Double");
    EXPECT_NO_THROW(program.run(good));
  }
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

TEST(DensePartTest, TorchScriptComputesThePartOfTheUserOnce) {
  Ranker model;
  const std::string path = test::new_file();
  export_dense_torchscript(model, path, example_of(3, 4), {"age", "price"});
  const DenseProgram program(path);
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

TEST(DensePartTest, TorchScriptKeepsSharedWeightsTogether) {
  const auto example_with = [](int64_t items) {
    ExportExample example = example_of(items, 4);
    example.inputs = {at::rand({items, 1})};
    return example;
  };
  Shared model;
  const std::string path = test::new_file();
  const Pt2Signature signature =
      export_dense_torchscript(model, path, example_with(3), {"self"});
  EXPECT_EQ(signature.inputs.back().path, "self");
  EXPECT_NE(signature.inputs.back().name, "self");
  // The code of zeros({}) calls annotate().
  for (const char* name :
       {"torch",
        "Tensor",
        "CONSTANTS",
        "ops",
        "forward",
        "annotate",
        "int",
        "float",
        "bool"}) {
    EXPECT_NO_THROW(
        export_dense_torchscript(model, path, example_with(3), {name}))
        << name;
  }
  const DenseProgram program(path);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : program.state_dict()) {
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  const std::vector<std::string> expected_names{
      "counts", "first-part.bias", "tied"};
  EXPECT_EQ(names, expected_names);

  const at::NoGradGuard no_grad;
  model->first->weight.add_(0.5);
  model->counts.fill_(3);
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : model->named_parameters()) {
    weights[item.key()] = item.value();
  }
  weights["counts"] = model->counts;
  const ExportExample example = example_with(6);
  const Nest<at::Tensor> rows = model->embedding->forward(example.features);
  const at::Tensor expected =
      model->forward(example.features, example.inputs[0]);
  const at::Tensor actual = program.with_weights(weights).run(
      {rows["user"],
       rows["item"],
       rows["tags"],
       rows["history"],
       std::get<RaggedFeature>(example.features["history"]).row_splits,
       example.inputs[0]})[0];
  EXPECT_TRUE(at::allclose(actual, expected, 1e-4, 1e-5));
}

// A model whose forward() calls a function on the activations, which may not be traced.
struct CallsImpl : torch::nn::Module {
  using Function = std::function<at::Tensor(at::Tensor item, at::Tensor user)>;
  explicit CallsImpl(Function function) : function(std::move(function)) {
    embedding = register_module("embedding", make_embedding());
  }
  at::Tensor forward(const Features& features) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    return function(rows["item"], rows["user"]);
  }
  TPUEmbedding embedding{nullptr};
  Function function;
};
TORCH_MODULE(Calls);

// A model with one output per candidate.
struct SplitsImpl : torch::nn::Module {
  SplitsImpl() {
    embedding = register_module("embedding", make_embedding());
  }
  std::vector<at::Tensor> forward(const Features& features) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    return (rows["item"] * rows["user"]).unbind(0);
  }
  TPUEmbedding embedding{nullptr};
};
TORCH_MODULE(Splits);

TEST(DensePartTest, TorchScriptRefusesWhatATraceCannotHold) {
  const std::string path = test::new_file();
  ExportExample example = example_of(3, 4);
  example.inputs.clear();
  EXPECT_VALUE_ERROR(
      export_dense_torchscript(ReadsIds(), path, example),
      "[export_dense_torchscript] forward() must compute from the activations");
  EXPECT_VALUE_ERROR(
      export_dense_torchscript(
          Calls([](const at::Tensor& item, const at::Tensor& user) {
            return item * user.expand({item.size(0), 4});
          }),
          path,
          example),
      "[export_dense_torchscript] at batch size 0: the exported file must give "
      "what the model gives");
  EXPECT_VALUE_ERROR(
      export_dense_torchscript(
          Calls([](const at::Tensor& item, const at::Tensor& user) {
            return user.sum().item<float>() > 1e9 ? item : item * user;
          }),
          path,
          example),
      "[export_dense_torchscript] forward() must not read values of tensors");
  EXPECT_VALUE_ERROR(
      export_dense_torchscript(Splits(), path, example),
      "[export_dense_torchscript] expected the same number of outputs for any "
      "number of candidates, but forward() gives 11 or 17");
  EXPECT_VALUE_ERROR(
      export_dense_torchscript(Ranker(nullptr), path, example),
      "[export_dense_torchscript] expected a model, but got an empty holder");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(DensePartTest, DamagedTorchScriptIsRefused) {
  Ranker model;
  const std::string path = test::new_file();
  export_dense_torchscript(model, path, example_of(3, 4), {"age", "price"});
  const std::string whole = test::read_text(path);
  const test::TemporaryFolder folder;
  std::string damaged;
  for (size_t i = 0; i < 200; ++i) {
    std::string bytes = whole;
    const size_t place = i * (whole.size() - 1) / 199;
    bytes[place] = static_cast<char>(bytes[place] ^ (1 << (i % 8)));
    damaged = folder.write("damaged.pt", bytes);
    EXPECT_THROW(DenseProgram{damaged}, c10::Error) << "byte " << place;
    damaged = folder.write("damaged.pt", whole.substr(0, place));
    EXPECT_THROW(DenseProgram{damaged}, c10::Error) << place << " bytes";
  }
  std::string bytes = whole;
  bytes[whole.size() / 2] ^= 1;
  damaged = folder.write("damaged.pt", bytes);
  EXPECT_VALUE_ERROR(
      DenseProgram{damaged},
      "[TorchScriptProgram] " + damaged + ": the file is damaged: its");

  // A whole model has no signature.
  const ExportExample example = example_of(3, 4);
  ExportExample batch = example;
  batch.features = {
      {"user", at::randint(20, {3}, at::kLong)},
      {"item", example.features["item"]},
      {"tags", example.features["tags"]},
      {"history", bags(3, 4)}};
  batch.inputs[0] = at::rand({3, 1});
  export_torchscript(model, path, batch);
  EXPECT_VALUE_ERROR(
      DenseProgram{path},
      "[TorchScriptProgram] " + path +
          ": the TorchScript model has no signature. Export it with "
          "export_dense_torchscript().");
}

// The bytes agree with their checksum, but another program has written the signature.
TEST(DensePartTest, TorchScriptWithAnotherSignatureIsRefused) {
  Ranker model;
  const test::TemporaryFolder folder;
  const std::string path = folder / "ranker.pt";
  export_dense_torchscript(model, path, example_of(3, 4), {"age", "price"});
  torch::jit::ExtraFilesMap extra_files{{"tessera.json", ""}};
  torch::jit::Module module = torch::jit::load(path, std::nullopt, extra_files);
  const Json good = parse_json(extra_files["tessera.json"]);
  const auto load_text = [&](const std::string& text) {
    std::ostringstream stream;
    module.save(stream, {{"tessera.json", text}});
    const std::string bytes = stream.str();
    DenseProgram(
        folder.write("other.pt", bytes + checksum_ending(checksum_of(bytes))));
  };
  const auto load = [&](auto&& change) {
    Json json = good;
    change(json);
    load_text(json.dump());
  };
  EXPECT_NO_THROW(load([](Json&) {}));
  EXPECT_VALUE_ERROR(
      load_text(""), "[TorchScriptProgram] " + folder.path().string());
  EXPECT_VALUE_ERROR(load_text("{"), "[TorchScriptProgram]");
  EXPECT_VALUE_ERROR(
      load_text("{}"),
      "'tessera.json' must have the fields that export_dense_torchscript() "
      "writes");
  EXPECT_VALUE_ERROR(
      load([](Json& json) { json["version"] = 2; }),
      "'tessera.json' must have the version 1, but has 2");
  EXPECT_VALUE_ERROR(
      load([](Json& json) { json["inputs"][0]["dtype"] = "Floaty"; }),
      "expected a dtype, but got 'Floaty'");
  EXPECT_VALUE_ERROR(
      load([](Json& json) { json["inputs"][0]["shape"][0] = 1.5; }),
      "[TorchScriptProgram]");
  EXPECT_VALUE_ERROR(
      load([](Json& json) { json["inputs"][0]["shape"] = Json::array(); }),
      "input 'user' must have at least one dimension, but has none");
  for (const Json& size : {Json(-1), Json(int64_t{1} << 40)}) {
    EXPECT_VALUE_ERROR(
        load([&](Json& json) {
          json["inputs"][0]["shape"] = Json::array({size, size, size});
        }),
        "'user' must have sizes >= 0 whose product fits into 64 bits, but has "
        "the size " +
            size.dump());
  }
  EXPECT_VALUE_ERROR(
      load([](Json& json) { json["inputs"][0]["part"] = "values"; }),
      "'user' must have the part 'activations', 'row_splits' or '', but has "
      "'values'");
  EXPECT_VALUE_ERROR(
      load([](Json& json) { json["outputs"] = Json::array(); }),
      "the signature must have at least one output, but has none");
  EXPECT_VALUE_ERROR(
      load([](Json& json) { json["inputs"].erase(0); }),
      "forward() must take the 6 inputs of the signature");
  for (const char* attribute : {"", "tower", "tower.", "absent.weight"}) {
    EXPECT_VALUE_ERROR(
        load([&](Json& json) {
          json["weights"][0]["attributes"][0] = attribute;
        }),
        "the module does not have the weight 'attention.linear_0.weight' of the "
        "signature. Export the model again.");
  }
  // The attributes of one weight have the same sizes.
  EXPECT_VALUE_ERROR(
      load([](Json& json) {
        json["weights"][0]["attributes"].push_back(
            json["weights"][1]["attributes"][0]);
      }),
      "the module does not have the weight 'attention.linear_0.weight'");

  // The object of a class is not a module, so programs would share it.
  const auto unit = module._ivalue()->compilation_unit();
  const auto type = c10::ClassType::create("__torch__.Holder", unit);
  type->addAttribute("weight", c10::TensorType::get());
  unit->register_type(type);
  const auto holder =
      c10::ivalue::Object::create(c10::StrongTypePtr(unit, type), 1);
  holder->setSlot(0, at::zeros({1}));
  module.register_attribute("holder", type, holder);
  EXPECT_NO_THROW(load([](Json&) {}));
  EXPECT_VALUE_ERROR(
      load([](Json& json) {
        json["weights"][0]["attributes"] = Json::array({"holder.weight"});
      }),
      "the module does not have the weight 'attention.linear_0.weight'");
}

}  // namespace tessera::dense_part_test
