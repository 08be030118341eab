// SPDX-License-Identifier: Apache-2.0
// Export of whole models, with tables and dense weights, to TorchScript.
#include <tessera/common/precision.h>
#include <tessera/export/pt2_program.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>

#include "packages/export/tests/export_test_util.h"

#include <ATen/record_function.h>

#include <atomic>
#include <string_view>

namespace tessera::test::export_model_test {

struct RankerImpl : torch::nn::Module {
  explicit RankerImpl(const Strategy& strategy = Strategy::fused()) {
    embedding = register_module("embedding", user_item_embedding(strategy));
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            torch::nn::Linear(13, 8),
            torch::nn::BatchNorm1d(8),
            torch::nn::ReLU(),
            torch::nn::Dropout(0.5),
            torch::nn::Linear(8, 1)));
    bias = register_parameter("class", at::randn({1}));
  }

  at::Tensor forward(
      const Features& features,
      const at::Tensor& prices,
      at::Tensor scale) {
    const at::Tensor embedded =
        Concatenate()->forward(embedding->forward(features));
    return at::sigmoid(tower->forward(at::cat({embedded, prices}, 1)) + bias)
               .squeeze(1) *
        scale;
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
  at::Tensor bias;
};
TORCH_MODULE(Ranker);

ExportExample ranker_example() {
  return {
      .features = three_examples(), .inputs = {at::rand({3, 2}), floats({2})}};
}

at::Tensor run_ranker(
    torch::jit::Module& loaded,
    const Features& features,
    const std::vector<at::Tensor>& inputs) {
  std::vector<c10::IValue> arguments{to_dict(all_parts_of(features))};
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  return loaded.forward(arguments).toTensor();
}

template <class Model>
torch::jit::Module export_model(
    const Model& model,
    const ExportExample& example,
    const ExportOptions& options = {}) {
  const std::string path = new_file();
  export_torchscript(model, path, example, options);
  return torch::jit::load(path);
}

template <class Model, class... Inputs>
void expect_same_results(
    torch::jit::Module& loaded,
    Model& model,
    const Features& features,
    const Inputs&... inputs) {
  const at::NoGradGuard no_grad;
  expect_close(
      run_ranker(loaded, features, {inputs...}),
      model.forward(features, inputs...));
}

TEST(ExportModelTest, TablesAndTowerMatchTheModel) {
  for (const Strategy& strategy :
       {Strategy::fused(), Strategy::host(), Strategy::padded()}) {
    Ranker model(strategy);
    torch::jit::Module loaded = export_model(model, ranker_example());
    model->eval();
    const at::Tensor scale = floats({3});
    expect_same_results(
        loaded, *model, five_examples(), at::rand({5, 2}), scale);
    const Features nothing{
        {"user", at::empty({0}, at::kLong)},
        {"item", sparse({}, 2)},
        {"history", ragged({})}};
    EXPECT_EQ(
        run_ranker(loaded, nothing, {at::rand({0, 2}), scale}).numel(), 0);
  }
}

TEST(ExportModelTest, AFileComputesInFloat32) {
  Ranker model;
  const auto exported = [&] {
    const PrecisionScope scope(Precision::kBFloat16);
    const std::string path = new_file();
    export_pt2(model, path, ranker_example());
    EXPECT_NO_THROW(Pt2Program{path});
    return export_model(model, ranker_example());
  };
  torch::jit::Module loaded = exported();
  model->eval();
  expect_same_results(
      loaded, *model, five_examples(), at::rand({5, 2}), floats({3}));
}

/// Own layers, of which one has few weights.
struct OwnLayersImpl : torch::nn::Module {
  OwnLayersImpl() {
    embedding =
        register_module("embedding", user_item_embedding(Strategy::fused()));
    crosses = register_module(
        "crosses",
        MultiLayerDCN(
            MultiLayerDCNOptions{.projection_dim = 64, .num_layers = 2}));
    tower = register_module("tower", MLP(MLPOptions{.units = {64, 64, 1}}));
  }

  at::Tensor forward(const Features& features) {
    return tower->forward(crosses->forward(embedding->forward(features)))
        .squeeze(1);
  }

  TPUEmbedding embedding{nullptr};
  MultiLayerDCN crosses{nullptr};
  MLP tower{nullptr};
};
TORCH_MODULE(OwnLayers);

int64_t products_in_bfloat16(const std::function<void()>& function) {
  static std::atomic<int64_t> products;
  products = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& function)
              -> std::unique_ptr<at::ObserverContext> {
            const std::string_view name = function.name();
            if (name == "aten::mm" || name == "aten::addmm" ||
                name == "aten::linear") {
              for (const c10::IValue& input : function.inputs()) {
                if (input.isTensor() && input.toTensor().defined() &&
                    input.toTensor().scalar_type() == at::kBFloat16) {
                  ++products;
                  break;
                }
              }
            }
            return nullptr;
          })
          .needsInputs(true));
  function();
  at::removeCallback(handle);
  return products;
}

TEST(ExportModelTest, AFileComputesInThePrecisionOfItsOptions) {
  OwnLayers model;
  const Features example = three_examples();
  model->forward(example);
  const at::NoGradGuard no_grad;
  model->eval();
  const at::Tensor exact = model->forward(five_examples());
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBFloat16}) {
    const bool is_rounded = precision == Precision::kBFloat16;
    const double tolerance = is_rounded ? 0.02 : 1e-5;
    torch::jit::Module script =
        export_model(model, {.features = example}, {.precision = precision});
    const std::string path = new_file();
    export_pt2(model, path, {.features = example}, {.precision = precision});
    const Pt2Program program(path);
    for (const auto& [name, weight] : program.state_dict()) {
      EXPECT_EQ(weight.scalar_type(), at::kFloat) << name;
    }
    at::Tensor scores;
    EXPECT_EQ(
        products_in_bfloat16(
            [&] { scores = run_ranker(script, five_examples(), {}); }) > 0,
        is_rounded);
    EXPECT_EQ(scores.scalar_type(), at::kFloat);
    expect_close(scores, exact, tolerance, tolerance);
    EXPECT_EQ(
        products_in_bfloat16([&] {
          scores = program.run(arguments_of(five_examples()))[0];
        }) > 0,
        is_rounded);
    EXPECT_EQ(scores.scalar_type(), at::kFloat);
    expect_close(scores, exact, tolerance, tolerance);
  }
}

TEST(ExportModelTest, AConvertedModelKeepsItsDtype) {
  for (const torch::Dtype dtype : {torch::kDouble, torch::kBFloat16}) {
    Ranker model;
    model->to(dtype);
    ExportExample example = ranker_example();
    for (at::Tensor& input : example.inputs) {
      input = input.to(dtype);
    }
    torch::jit::Module loaded = export_model(model, example);
    model->eval();
    const at::NoGradGuard no_grad;
    const at::Tensor prices = at::rand({5, 2}).to(dtype);
    const at::Tensor scale = floats({3}).to(dtype);
    const at::Tensor scores =
        run_ranker(loaded, five_examples(), {prices, scale});
    EXPECT_EQ(scores.scalar_type(), dtype);
    expect_close(
        scores, model->forward(five_examples(), prices, scale), 1e-2, 1e-2);
  }
}

TEST(ExportModelTest, RefusesAnotherDeviceAndAConvertedLayerAlone) {
  Ranker model;
  const std::string path = new_file();
  model->embedding->to(torch::kDouble);
  EXPECT_VALUE_ERROR(
      export_torchscript(model->embedding, path),
      "[export_torchscript] the activations of an exported layer must be "
      "float32, but they are Double");
  model->embedding->to(torch::Device("meta"), torch::kFloat);
  EXPECT_VALUE_ERROR(
      export_torchscript(model, path, ranker_example()),
      "[TPUEmbedding] exported models compute on the cpu, but activations "
      "go to meta");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ExportModelTest, ParametersKeepTheirNamesWithoutGradients) {
  torch::jit::Module loaded = export_model(Ranker(), ranker_example());
  Texts parameters;
  for (const auto& parameter : loaded.named_parameters()) {
    parameters.push_back(parameter.name);
    EXPECT_FALSE(parameter.value.requires_grad());
  }
  EXPECT_EQ(
      parameters,
      listed("class_, tower.0.weight, tower.0.bias, tower.1.weight, "
             "tower.1.bias, tower.4.weight, tower.4.bias"));
  Texts buffers;
  for (const auto& buffer : loaded.named_buffers()) {
    buffers.push_back(buffer.name);
  }
  EXPECT_EQ(buffers[0], "embedding.table_0");
  EXPECT_EQ(buffers[1], "embedding.table_1");
}

TEST(ExportModelTest, ExportLeavesTheModelUnchanged) {
  Ranker model;
  model->train();
  model->tower[3]->eval();
  const std::string tables = saved(model->embedding);
  const std::vector<at::Tensor> parameters = model->parameters();
  export_model(model, ranker_example(), {.dtype = at::kChar});
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(model->tower[1]->is_training());
  EXPECT_FALSE(model->tower[3]->is_training());
  for (const at::Tensor& parameter : parameters) {
    EXPECT_TRUE(parameter.requires_grad());
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(saved(model->embedding), tables);
  EXPECT_EQ(model->embedding->iterations(), 0);
  EXPECT_TRUE(at::GradMode::is_enabled());
  // The model can still be trained.
  model->forward(three_examples(), at::rand({3, 2}), floats({1}))
      .sum()
      .backward();
  EXPECT_EQ(model->embedding->iterations(), 1);
}

TEST(ExportModelTest, TablesMayHaveOtherDtypes) {
  Ranker model;
  const at::Tensor prices = at::rand({5, 2});
  const at::Tensor scale = floats({1});
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kHalf, 1e-3}, std::pair{at::kChar, 1e-2}}) {
    torch::jit::Module loaded =
        export_model(model, ranker_example(), {.dtype = dtype});
    model->eval();
    const at::NoGradGuard no_grad;
    expect_close(
        run_ranker(loaded, five_examples(), {prices, scale}),
        model->forward(five_examples(), prices, scale),
        tolerance,
        tolerance);
  }
}

TEST(ExportModelTest, IdsOutOfRangeAndAnotherKindOfFeatureRaise) {
  torch::jit::Module loaded = export_model(Ranker(), ranker_example());
  auto features = all_parts_of(three_examples());
  const auto error_of = [&] {
    try {
      loaded.forward({to_dict(features), at::rand({3, 2}), floats({1})});
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  features["user"] = {int64s({1, 2, 20})};
  EXPECT_CONTAINS(
      error_of(), "[feature 'user'] ids must be in [0, 20), but got 20");
  features["user"] = {int64s({1, 2, 3})};
  features["history"] = {int64s({1, 2, 3})};
  EXPECT_CONTAINS(error_of(), "[feature 'history'] must be 2 tensors");
  features.erase("history");
  EXPECT_CONTAINS(error_of(), "[feature 'history'] is missing");
}

TEST(ExportModelTest, ResultsMayBeAList) {
  auto model = make_model<std::vector<at::Tensor>>(
      [](auto& self, const Features& features, const at::Tensor& input) {
        const at::Tensor embedded = self.embed(features);
        return std::vector<at::Tensor>{
            self.linear->forward(embedded), embedded, input * 2};
      });
  torch::jit::Module loaded = export_model(model, model_example());
  const at::NoGradGuard no_grad;
  const at::Tensor input = at::rand({5, 2});
  const auto expected = model->forward(five_examples(), input);
  const auto actual =
      loaded.forward({to_dict(all_parts_of(five_examples())), input})
          .toTensorVector();
  ASSERT_EQ(actual.size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    expect_close(actual[i], expected[i]);
  }
}

TEST(ExportModelTest, IdsMayBeComputedFromTheInputs) {
  auto model =
      make_model([](auto& self, const Features& features, const at::Tensor&) {
        const auto& history = std::get<RaggedFeature>(features["history"]);
        return self.embed(
            {{"user", std::get<at::Tensor>(features["user"]).remainder(20)},
             {"item", features["item"]},
             {"history",
              RaggedFeature{history.values + 1, history.row_splits}}});
      });
  torch::jit::Module loaded = export_model(model, model_example());
  Features features = five_examples();
  features = {
      {"user", int64s({29, 48, 7, 6, 5})},
      {"item", features["item"]},
      {"history", features["history"]}};
  expect_same_results(loaded, *model, features, at::rand({5, 2}));
}

TEST(ExportModelTest, TheLayerMayBeCalledTwice) {
  auto model =
      make_model([](auto& self, const Features& features, const at::Tensor&) {
        const auto first = self.embedding->forward(features);
        const auto second = self.embedding->forward(
            {{"user", features["user"]},
             {"item", features["history"]},
             {"history", features["item"]}});
        return at::cat({first["user"], second["item"], second["history"]}, 1);
      });
  torch::jit::Module loaded = export_model(model, model_example());
  expect_same_results(loaded, *model, five_examples(), at::rand({5, 2}));
}

TEST(ExportModelTest, FeaturesMayBeForTheTowerOnly) {
  auto model =
      make_model([](auto& self, const Features& features, const at::Tensor&) {
        const at::Tensor embedded = self.embed(
            {{"user", features["user"]},
             {"item", features["item"]},
             {"history", features["history"]}});
        const auto column = [&](const char* name) {
          return std::get<at::Tensor>(features[name]).unsqueeze(1);
        };
        return at::cat(
            {at::where(column("mask"), embedded, -embedded), column("age")}, 1);
      });
  const auto with_own = [](const Features& features) {
    const int64_t rows = std::get<at::Tensor>(features["user"]).size(0);
    return Features{
        {"user", features["user"]},
        {"item", features["item"]},
        {"age", at::rand({rows})},
        {"mask", at::rand({rows}) > 0.5},
        {"history", features["history"]}};
  };
  ExportExample example = model_example();
  example.features = with_own(example.features);
  torch::jit::Module loaded = export_model(model, example);
  expect_same_results(
      loaded, *model, with_own(five_examples()), at::rand({5, 2}));
}

// A model that gets the weights of one feature as Weights, and those of another as
// a tensor.
struct WeightedImpl : torch::nn::Module {
  WeightedImpl() {
    embedding = register_module("embedding", user_item_embedding());
  }
  at::Tensor forward(
      const Features& features,
      const Weights& weights,
      const at::Tensor& history_weights) {
    return Concatenate()->forward(embedding->forward(
        features,
        {{"user", std::nullopt},
         {"item", weights["item"]},
         {"history", std::optional<Feature>(history_weights.exp())}}));
  }
  TPUEmbedding embedding{nullptr};
};
TORCH_MODULE(Weighted);

Weights weights_of_item(const at::Tensor& weights) {
  return {
      {"user", std::nullopt},
      {"item", std::optional<Feature>(weights)},
      {"history", std::nullopt}};
}

// A retrieval model, which scores all items for each user.
struct RetrievalImpl : torch::nn::Module {
  explicit RetrievalImpl(const Strategy& strategy) {
    const auto users = make_table({.vocabulary_size = 20, .dim = 4});
    items = make_table({.vocabulary_size = 30, .dim = 4});
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"user", FeatureConfig{.table = users}},
                 {"item", FeatureConfig{.table = items}}},
            .strategy = strategy}));
  }
  at::Tensor forward(const Features& features) {
    return embedding->forward(features)["user"].matmul(
        embedding->embedding_tables()[items].t());
  }
  TablePtr items;
  TPUEmbedding embedding{nullptr};
};
TORCH_MODULE(Retrieval);

TEST(ExportModelTest, ATowerThatReadsATableSharesItInTheFile) {
  const Features features{{"user", int64s({1, 2})}, {"item", int64s({1, 2})}};
  for (const Strategy& strategy : {Strategy::fused(), Strategy::host()}) {
    Retrieval model(strategy);
    torch::jit::Module loaded = export_model(model, {.features = features});
    const at::NoGradGuard no_grad;
    expect_close(run_ranker(loaded, features, {}), model->forward(features));
    at::Tensor items =
        loaded.attr("embedding").toModule().attr("table_1").toTensor();
    EXPECT_FALSE(items.requires_grad());
    items.zero_();
    EXPECT_EQ(run_ranker(loaded, features, {}).count_nonzero().item<int>(), 0);
  }
}

TEST(ExportModelTest, WeightsAreInputs) {
  Weighted model;
  torch::jit::Module loaded = export_model(
      model,
      {.features = three_examples(),
       .weights = weights_of_item(at::rand({4})),
       .inputs = {at::rand({4})}});
  const at::Tensor item_weights = at::rand({6});
  const at::Tensor history_weights = at::rand({8});
  const Features features{
      {"user", int64s({9, 8, 7, 6})},
      {"item", sparse({{1}, {2, 3}, {}, {4, 4, 0}}, 3)},
      {"history", ragged({{}, {1, 2, 3, 4, 5}, {6}, {7, 7}})}};
  const at::NoGradGuard no_grad;
  expect_close(
      loaded
          .forward(
              {to_dict(all_parts_of(features)),
               to_dict(TensorMap{{"item", item_weights}}),
               history_weights})
          .toTensor(),
      model->forward(features, weights_of_item(item_weights), history_weights));
}

TEST(ExportModelTest, ASequentialIsExported) {
  torch::nn::Sequential model(
      user_item_embedding(), Concatenate(), torch::nn::Linear(11, 1));
  torch::jit::Module loaded =
      export_model(model, {.features = three_examples()});
  expect_same_results(loaded, *model, five_examples());
}

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    left = register_module("left", user_item_embedding());
    right = register_module("right", user_item_embedding());
    unused = register_module("unused", user_item_embedding());
    shared = register_module("shared", torch::nn::Linear(11, 2));
    register_module("shared again", shared.ptr());
  }
  at::Tensor forward(const Features& features) {
    return shared->forward(Concatenate()->forward(left->forward(features))) *
        shared->forward(Concatenate()->forward(right->forward(features)));
  }
  TPUEmbedding left{nullptr};
  TPUEmbedding right{nullptr};
  TPUEmbedding unused{nullptr};
  torch::nn::Linear shared{nullptr};
};
TORCH_MODULE(TwoLayers);

TEST(ExportModelTest, SeveralLayersAndSharedModulesAreExported) {
  TwoLayers model;
  model->right->embedding_tables()["items"].copy_(at::randn({30, 4}));
  torch::jit::Module loaded =
      export_model(model, {.features = three_examples()});
  EXPECT_FALSE(loaded.hasattr("unused"));
  expect_same_results(loaded, *model, five_examples());
}

// A module whose type is named like a type of TorchScript. The test gives its
// parameters names with a meaning in TorchScript.
struct TensorImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor sum = input;
    for (const auto& parameter : parameters()) {
      sum = sum + parameter;
    }
    return sum;
  }
};

TEST(ExportModelTest, PartsMayHaveAnyName) {
  const Texts names{"for",     "None",   "__init__", "0",        "0a",
                    "a b",     "a_b",    "\xc3\xa9", "q\"'\\\n", "training",
                    "print",   "self",   "torch",    "compute",  "_c",
                    "forward", "lambda", "List",     "Tensor",   "int",
                    "table_0", "f({})",  "async",    "del",      "type",
                    "dtype",   "state",  "__torch__"};
  const auto part = std::make_shared<TensorImpl>();
  for (const std::string& name : names) {
    part->register_parameter(name, at::randn({1}));
  }
  auto model = make_model(
      [part](auto& self, const Features& features, const at::Tensor&) {
        return part->forward(self.embed(features));
      });
  model->register_module("import", part);
  torch::jit::Module loaded = export_model(model, model_example());
  expect_same_results(loaded, *model, five_examples(), at::rand({5, 2}));
  EXPECT_EQ(
      loaded.attr("import_").toModule().parameters().size(), names.size());
}

TEST(ExportModelTest, ALookupForServingIsExported) {
  auto model =
      make_model([](auto& self, const Features& features, const at::Tensor&) {
        return self.embedding->embedding_lookup(features)["item"];
      });
  torch::jit::Module loaded = export_model(model, model_example());
  expect_same_results(loaded, *model, five_examples(), at::rand({5, 2}));
}

TEST(ExportModelTest, RefusesLookupsThatTorchScriptCannotMake) {
  const std::string path = new_file();
  const auto refuses = [&](FunctionModel<>::Function function,
                           const std::string& text) {
    EXPECT_RAISES(
        c10::NotImplementedError,
        export_torchscript(make_model(function), path, model_example()),
        text);
  };
  refuses(
      [](auto& self, const Features& features, const at::Tensor&) {
        return self.embedding->embedding_lookup(
            features, {}, self.embedding->options().features)["item"];
      },
      "but this one passes a serving_config. Leave it out.");
  refuses(
      [](auto& self, const Features& features, const at::Tensor&) {
        auto pending = self.embedding->begin_forward(features);
        return Concatenate()->forward(
            self.embedding->finish_forward(std::move(pending)));
      },
      "an exported model must call forward(), but this one calls "
      "begin_forward().");
  const auto partial =
      make_model([](auto& self, const Features& features, const at::Tensor&) {
        const at::NoGradGuard no_grad;
        return self.embedding->forward({{"user", features["user"]}})["user"];
      });
  EXPECT_VALUE_ERROR(
      export_torchscript(partial, path, model_example()),
      "An exported model must look up all features of a layer.");
  expect_nothing_at(path);
}

TEST(ExportModelTest, RefusesModelsThatCanNotBeTraced) {
  const at::Tensor ids = int64s({1, 2, 3});
  const at::Tensor weight = at::randn({11, 2}).requires_grad_();
  auto hidden = user_item_embedding();
  expect_refusals<FunctionModel<>::Function>(
      {{[](auto& self, const Features& features, const at::Tensor& input) {
          const at::Tensor embedded = self.embed(features);
          return embedded.reshape({embedded.size(0), 11}) +
              input.reshape({input.size(0) * 2}).sum();
        },
        "[export_torchscript] at batch size 0: the exported file must give "
        "what the model gives, but it gives an error: "},
       {[](auto& self, const Features& features, const at::Tensor& input) {
          return self.embed(features) * (input.size(0) > 3 ? 2 : 1);
        },
        "[export_torchscript] at batch size 7: the exported file must give "
        "what the model gives, but it gives other values. The file was traced "
        "from a batch of 3."},
       {[](auto& self, const Features& features, const at::Tensor&) {
          return self.embed(features) + at::randn({1});
        },
        "leave random numbers out"},
       {[](auto& self, const Features& features, const at::Tensor& input) {
          TORCH_CHECK(input.size(0) == 3, "three examples only");
          return self.embed(features);
        },
        "[export_torchscript] expected a model that takes batches of any size, "
        "but it takes only the example's batch size, 3: three examples only"},
       {[=](auto& self, const Features& features, const at::Tensor&) {
          return self.embed(
              {{"user", ids},
               {"item", features["item"]},
               {"history", features["history"]}});
        },
        "[export_torchscript] feature 'user': ids and weights must be the "
        "model's inputs, or be computed from them by LibTorch's operators"},
       {[](auto& self, const Features& features, const at::Tensor&) {
          return self.embed(features) * floats({2});
        },
        "operators must compute all tensors, but forward() fills one with C++ "
        "values, by at::tensor() or through its memory"},
       {[](auto&, const Features& features, const at::Tensor&) {
          return std::get<at::Tensor>(features["user"]) * 2;
        },
        "[export_torchscript] expected a model whose forward() calls a "
        "TPUEmbedding or an EmbeddingEngineModule, but"},
       {[=](auto&, const Features& features, const at::Tensor&) mutable {
          return Concatenate()->forward(hidden->forward(features));
        },
        "every TPUEmbedding and EmbeddingEngine that forward() calls must be a "
        "submodule of the model, but one is not. Register it with "
        "register_module()."},
       {[=](auto& self, const Features& features, const at::Tensor&) {
          return self.embed(features).matmul(weight);
        },
        "[export_torchscript] LibTorch can't trace the model: Cannot insert a "
        "Tensor that requires grad as a constant"}},
      [](const auto& function) {
        const std::string path = new_file();
        const auto model = make_model(function);
        EXPECT_VALUE_ERROR(
            export_torchscript(model, path, model_example()), "");
        expect_nothing_at(path);
        export_torchscript(model, path, model_example());
      });
}

TEST(ExportModelTest, ErrorsNameUnusableExamples) {
  Ranker model;
  const std::string path = new_file();
  const auto with = [](Features features) {
    ExportExample example = ranker_example();
    example.features = std::move(features);
    return example;
  };
  ExportExample short_one = ranker_example();
  short_one.inputs.pop_back();
  ExportExample undefined = ranker_example();
  undefined.inputs[1] = at::Tensor();
  ExportExample weighted = ranker_example();
  weighted.weights = weights_of_item(at::rand({4}));
  expect_refusals<ExportExample>(
      {{short_one,
        "[export_torchscript] example.inputs: expected 2 tensors, which "
        "forward() takes after features and weights, but got 1."},
       {undefined, "example.inputs[1]: expected a"},
       {weighted, "forward() takes no Weights"},
       {with(
            {{"user", at::empty({0}, at::kLong)},
             {"item", sparse({}, 2)},
             {"history", ragged({})}}),
        "[export_torchscript] example: expected a batch of at least one row, "
        "but got an empty one."},
       {with({}), "at least one row"},
       {with(
            {{"user", int64s({1, 2, 3, 4})},
             {"item", sparse({{1}, {2}, {3}}, 2)},
             {"history", ragged({{1}, {2}, {3}})}}),
        "example.features 'user': the number of rows must be a multiple of the "
        "batch size 3, but it is 4."},
       {with({{"user", int64s({1, 2, 3})}}), "missing entry 'item'"}},
      [&](const ExportExample& example) {
        export_torchscript(model, path, example);
      });
  expect_nothing_at(path);
  EXPECT_VALUE_ERROR(
      export_torchscript(
          model, path, ranker_example(), {.features = {"embedding"}}),
      "options.features must be empty for a model, which needs all its "
      "features. It chooses features only when a single TPUEmbedding is "
      "exported.");
  EXPECT_VALUE_ERROR(
      export_torchscript(Ranker(nullptr), path, ranker_example()),
      "[export_torchscript] expected a model, but got an empty holder. Make "
      "the model before the export.");
  EXPECT_VALUE_ERROR(
      export_torchscript(model, "", ranker_example()),
      "expected the path of a file, but got ''");
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(at::GradMode::is_enabled());
}

}  // namespace tessera::test::export_model_test
