// SPDX-License-Identifier: Apache-2.0
// Layers and models as JSON. Also building, output shapes and summaries.
#include <tessera/layers/dense/concatenate.h>
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/embed_reduce.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <tessera/layers/layer_json.h>
#include <tessera/layers/partial_tpu_embedding.h>

#include "tests/layers/layer_test_util.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/normalization.h>

namespace tessera {

struct ScaleOptions {
  double initial_value = 1.0;

  bool operator==(const ScaleOptions&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("initial_value", self.initial_value);
  }
};

// A user's layer with one factor per column.
class ScaleImpl : public LayerImpl<ScaleImpl, ScaleOptions> {
 public:
  static constexpr const char* kClassName = "Scale";
  using LayerImpl::LayerImpl;

  at::Tensor forward(const at::Tensor& input) {
    build_on_first_call(input);
    return input * scale_;
  }
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override {
    TORCH_CHECK_VALUE(
        input_shapes.leaf().size() == 2, "[Scale] expected [batch, dim].");
    return input_shapes;
  }

 private:
  void make_parameters(const Nest<PartialShape>& input_shapes) override {
    scale_ = register_parameter(
        "scale", at::full({*input_shapes.leaf()[1]}, options().initial_value));
  }

  at::Tensor scale_;
};
TORCH_MODULE(Scale);
const bool is_scale_registered = register_layer<Scale>();

// A user's model whose options describe its modules.
struct RankerOptions {
  Nest<FeatureConfig> features = {};
  std::optional<optim::OptimizerSpec> optimizer = {};
  Strategy strategy = Strategy::fused();
  std::vector<int64_t> units = {4};

  bool operator==(const RankerOptions&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("features", self.features);
    visit("optimizer", self.optimizer);
    visit("strategy", self.strategy);
    visit("units", self.units);
  }
};

class RankerImpl : public LayerImpl<RankerImpl, RankerOptions> {
 public:
  static constexpr const char* kClassName = "Ranker";

  explicit RankerImpl(RankerOptions options) : LayerImpl(std::move(options)) {
    reset();
  }
  void reset() override {
    embedding = register_module(
        "embedding",
        test::layer_of(
            options().features,
            options().optimizer,
            {.strategy = options().strategy}));
    tower = register_module("tower", torch::nn::Sequential());
    for (const int64_t unit : options().units) {
      tower->push_back(torch::nn::Linear(4, unit));
    }
  }
  at::Tensor forward(const Features& features) {
    return tower->forward(embedding->forward(features)["user"]);
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(Ranker);
const bool is_ranker_registered = register_layer<Ranker>();

namespace layer_json_test {

Nest<FeatureConfig> shared_features() {
  const auto movies = make_table(
      {.name = "movies", .vocabulary_size = 9, .dim = 4, .optimizer = {}});
  const auto users = make_table(
      {.vocabulary_size = 5,
       .dim = 4,
       .optimizer = optim::Adagrad{.learning_rate = 0.5}});
  return {
      {"user", FeatureConfig{.table = users}},
      {"movie", FeatureConfig{.table = movies}},
      {"history", FeatureConfig{.table = movies, .max_sequence_length = 3}}};
}

TPUEmbeddingOptions embedding_options() {
  return {
      .features = shared_features(),
      .optimizer =
          optim::Adam{
              .learning_rate =
                  optim::CosineDecay{
                      .initial_learning_rate = 0.1, .decay_steps = 10}},
      .strategy = Strategy::host({.sparse_gradients = true}),
      .apply = Apply::kOnStep,
      .seed = std::numeric_limits<uint64_t>::max(),
      .missing_slots = MissingSlots::kKeep,
      .non_finite_gradients = NonFiniteGradients::kRefuse};
}

Features features_of_batch() {
  return {
      {"user", test::int64s({1, 4})},
      {"movie", test::int64s({0, 8})},
      {"history",
       RaggedFeature{test::int64s({1, 2, 3}), test::int64s({0, 1, 3})}}};
}

// Converts JSON to text and back, as a file does.
Json reread(const Json& json) {
  return Json::parse(json.dump());
}

// Returns all classes that JSON knows. The error for an unknown class lists them.
std::vector<std::string> known_classes() {
  std::vector<std::string> names;
  try {
    layer_from_json({{"class_name", "none"}});
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    const std::string before = "Known: ";
    const size_t begin = text.find(before) + before.size();
    std::istringstream list(text.substr(begin, text.find('.', begin) - begin));
    for (std::string name; std::getline(list >> std::ws, name, ',');) {
      names.push_back(name);
    }
  }
  return names;
}

TEST(LayerJsonTest, AnEmbeddingHasEqualOptionsAndSharedTables) {
  const TPUEmbedding layer(embedding_options());
  const Json json = reread(to_json(layer));
  EXPECT_EQ(json.at("class_name"), "TPUEmbedding");
  EXPECT_EQ(json.at("config"), layer->get_config());
  const auto rebuilt = from_json<TPUEmbedding>(json);
  const auto& features = rebuilt->options().features;
  EXPECT_EQ(features["movie"].table, features["history"].table);
  EXPECT_NE(features["movie"].table, features["user"].table);
  EXPECT_EQ(*features["user"].table, *layer->options().features["user"].table);
  EXPECT_EQ(rebuilt->options().optimizer, layer->options().optimizer);
  EXPECT_EQ(rebuilt->options().strategy, layer->options().strategy);
  EXPECT_EQ(rebuilt->options().apply, Apply::kOnStep);
  EXPECT_EQ(rebuilt->options().seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(rebuilt->options().missing_slots, MissingSlots::kKeep);
  EXPECT_EQ(
      rebuilt->options().non_finite_gradients, NonFiniteGradients::kRefuse);
  test::expect_same_tables(rebuilt, test::tables_of(layer));
  EXPECT_EQ(to_json(rebuilt), to_json(layer));
  const auto by_config = from_config<TPUEmbedding>(layer->get_config());
  EXPECT_EQ(to_json(by_config), to_json(layer));
}

TEST(LayerJsonTest, AMissingKeyMeansTheDefault) {
  Json json = to_json(TPUEmbedding(embedding_options()));
  json["config"].erase("seed");
  json["config"].erase("strategy");
  json["config"].erase("apply");
  json["config"].erase("missing_slots");
  json["config"].erase("non_finite_gradients");
  const auto layer = from_json<TPUEmbedding>(json);
  EXPECT_EQ(layer->options().seed, 0U);
  EXPECT_EQ(layer->options().strategy, Strategy::fused());
  EXPECT_EQ(layer->options().apply, Apply::kInBackward);
  EXPECT_EQ(layer->options().missing_slots, MissingSlots::kError);
  EXPECT_EQ(layer->options().non_finite_gradients, NonFiniteGradients::kApply);
  json["config"]["missing_slots"] = "lose";
  EXPECT_VALUE_ERROR(
      from_json<TPUEmbedding>(json), "expected error or keep, but got 'lose'");
}

TEST(LayerJsonTest, ACallerMayChooseTheStrategy) {
  const Json json = to_json(TPUEmbedding(embedding_options()));
  const auto layer =
      from_json<TPUEmbedding>(json, {.strategy = Strategy::padded()});
  EXPECT_EQ(layer->options().strategy, Strategy::padded());
}

TEST(LayerJsonTest, StrategiesHaveTheNamesOfOlderVersions) {
  const std::vector<std::pair<Strategy, Json>> saved{
      {Strategy::fused({.lookup_threads = 2}),
       {{"class_name", "engine"}, {"config", {{"lookup_threads", 2}}}}},
      {Strategy::host({.sparse_gradients = true}),
       {{"class_name", "host"}, {"config", {{"sparse_gradients", true}}}}},
      {Strategy::padded(),
       {{"class_name", "dense"}, {"config", Json::object()}}}};
  for (const auto& [strategy, json] : saved) {
    EXPECT_EQ(JsonValue<Strategy>::write(strategy), json);
    EXPECT_EQ(JsonValue<Strategy>::read(json, "strategy"), strategy);
  }
}

TEST(LayerJsonTest, FunctionsMustBeGivenByName) {
  auto options = embedding_options();
  const optim::LearningRate rate("warm_up", [] { return 0.5; });
  options.optimizer = optim::SGD{.learning_rate = rate};
  const TPUEmbedding layer(options);
  const Json json = reread(to_json(layer));
  EXPECT_VALUE_ERROR(
      from_json<TPUEmbedding>(json),
      "needs functions that a file can't hold:\n"
      "  layer.TPUEmbedding: learning_rates 'warm_up'\n"
      "Pass them in Callables under these names.");
  const auto rebuilt = from_json<TPUEmbedding>(
      json, {.callables = {.learning_rates = {{"warm_up", rate}}}});
  EXPECT_EQ(rebuilt->options().optimizer, layer->options().optimizer);
}

TEST(LayerJsonTest, RulesOfTablesAndLayersMustBeGivenByName) {
  const auto descent = [](const char* name) {
    return optim::CustomRule(name, [](optim::CustomRows& rows) {
      rows.weights.sub_(rows.gradients, rows.learning_rate);
    });
  };
  const Callables callables{
      .learning_rates =
          {{"warm_up", optim::LearningRate("warm_up", [] { return 0.5; })}},
      .rules = {{"own", descent("own")}, {"common", descent("common")}}};
  const auto movies = make_table(
      {.name = "movies",
       .vocabulary_size = 9,
       .dim = 4,
       .optimizer = optim::CustomOptimizer{
           .learning_rate = callables.learning_rates.at("warm_up"),
           .rule = callables.rules.at("own")}});
  const auto users = make_table({.vocabulary_size = 5, .dim = 4});
  const Nest<FeatureConfig> features{
      {"user", FeatureConfig{.table = users}},
      {"movie", FeatureConfig{.table = movies}},
      {"history", FeatureConfig{.table = movies, .max_sequence_length = 3}}};
  const optim::CustomOptimizer common{.rule = callables.rules.at("common")};
  Ranker model(RankerOptions{.features = features, .optimizer = common});
  const Json json = reread(to_json(model));
  EXPECT_VALUE_ERROR(
      from_json<Ranker>(json),
      "needs functions that a file can't hold:\n"
      "  layer.Ranker, table 'movies': learning_rates 'warm_up'\n"
      "  layer.Ranker, table 'movies': rules 'own'\n"
      "  layer.Ranker: rules 'common'\n"
      "Pass them in Callables under these names.");
  auto rebuilt = from_json<Ranker>(json, {.callables = callables});
  const auto& read = rebuilt->embedding->options();
  EXPECT_EQ(*read.features["movie"].table, *movies);
  EXPECT_EQ(read.features["movie"].table, read.features["history"].table);
  EXPECT_EQ(read.optimizer, optim::OptimizerSpec(common));
  EXPECT_EQ(reread(to_json(rebuilt)), json);
  for (TPUEmbedding layer : {model->embedding, rebuilt->embedding}) {
    const auto loss = layer->forward(features_of_batch()).flatten();
    (loss[0].sum() + loss[1].square().sum()).backward();
  }
  test::expect_same_tables(
      rebuilt->embedding, test::tables_of(model->embedding));

  Json unset = json;
  unset["config"]["optimizer"]["config"]["rule"] = nullptr;
  EXPECT_VALUE_ERROR(
      from_json<Ranker>(unset, {.callables = callables}), "rule must be set");
}

TEST(LayerJsonTest, AModelIsOneJson) {
  auto options = embedding_options();
  options.strategy = Strategy::fused();
  options.apply = Apply::kInBackward;
  Scale shared(ScaleOptions{.initial_value = 2.0});
  torch::nn::Sequential model(
      TPUEmbedding(options),
      Concatenate(),
      shared,
      torch::nn::Linear(torch::nn::LinearOptions(20, 20).bias(false)),
      shared,
      torch::nn::ReLU(),
      torch::nn::BatchNorm1d(
          torch::nn::BatchNorm1dOptions(20).momentum(std::nullopt)),
      torch::nn::Dropout(0.25),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({20})),
      torch::nn::Softmax(1),
      torch::nn::GELU());
  model->eval();
  const auto expected = model->forward(features_of_batch());
  const Json json = reread(to_json(model));
  EXPECT_EQ(
      json["config"]["layers"][4], (Json{{"name", "4"}, {"same_as", "2"}}));
  auto rebuilt = from_json<torch::nn::Sequential>(json);
  rebuilt->eval();
  EXPECT_EQ(reread(to_json(rebuilt)), json);
  EXPECT_EQ(rebuilt->ptr(2), rebuilt->ptr(4));

  test::copy_by_archive(model, rebuilt);
  EXPECT_TENSOR_EQ(rebuilt->forward(features_of_batch()), expected);
}

TEST(LayerJsonTest, EveryOtherStockClassRoundTrips) {
  torch::nn::Sequential model(
      torch::nn::ELU(torch::nn::ELUOptions().alpha(0.5)),
      torch::nn::Flatten(torch::nn::FlattenOptions().start_dim(0)),
      torch::nn::Identity(),
      torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.3)),
      torch::nn::SiLU(),
      torch::nn::Sigmoid(),
      torch::nn::Tanh(),
      torch::nn::ReLU(torch::nn::ReLUOptions(true)));
  const Json json = reread(to_json(model));
  EXPECT_EQ(json["config"]["layers"][0]["config"]["alpha"], 0.5);
  EXPECT_EQ(json["config"]["layers"][7]["config"]["inplace"], true);
  auto rebuilt = from_json<torch::nn::Sequential>(json);
  EXPECT_EQ(reread(to_json(rebuilt)), json);
  EXPECT_TENSOR_EQ(
      rebuilt->forward(at::ones({2, 3})), model->forward(at::ones({2, 3})));
}

TEST(LayerJsonTest, AUsersModelIsRebuilt) {
  const Ranker model(RankerOptions{
      .features = shared_features(),
      .optimizer = optim::SGD{.learning_rate = 0.5},
      .units = {4, 2}});
  const auto rebuilt = from_json<Ranker>(reread(to_json(model)));
  EXPECT_EQ(to_json(rebuilt), to_json(model));
  EXPECT_EQ(rebuilt->tower->size(), 2U);
  const auto& features = rebuilt->embedding->options().features;
  EXPECT_EQ(features["movie"].table, features["history"].table);
  const auto on_host =
      from_json<Ranker>(to_json(model), {.strategy = Strategy::host()});
  EXPECT_EQ(on_host->embedding->options().strategy, Strategy::host());
}

TEST(LayerJsonTest, ABuiltLayerIsBuiltAgain) {
  Scale layer(ScaleOptions{.initial_value = 3.0});
  EXPECT_FALSE(to_json(layer).contains("build_config"));
  layer->build(PartialShape{std::nullopt, 2});
  const auto rebuilt = from_json<Scale>(reread(to_json(layer)));
  ASSERT_EQ(rebuilt->parameters().size(), 1U);
  EXPECT_TENSOR_EQ(rebuilt->parameters()[0], layer->parameters()[0]);
}

TEST(LayerJsonTest, ABatchSizeOfBuildIsRestored) {
  const auto table = make_table({.vocabulary_size = 9, .dim = 4});
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {
          {"one", FeatureConfig{.table = table}},
          {"grid", FeatureConfig{.table = table, .output_shape = {{2, 3}}}},
          {"history",
           FeatureConfig{.table = table, .max_sequence_length = 3}}}});
  layer->build(2);
  const Json json = reread(to_json(layer));
  EXPECT_EQ(
      json["build_config"]["input_shape"],
      Json::parse(R"({"one":[2],"grid":[2,3,null],"history":[2]})"));
  auto rebuilt = from_json<TPUEmbedding>(json);
  EXPECT_EQ(reread(to_json(rebuilt)), json);
  const auto batch = [](int64_t size) {
    const RaggedFeature none{
        at::zeros({0}, at::kLong), at::zeros({size + 1}, at::kLong)};
    return Features{
        {"one", at::zeros({size}, at::kLong)},
        {"grid",
         RaggedFeature{at::zeros({0}, at::kLong), at::zeros({7}, at::kLong)}},
        {"history", none}};
  };
  EXPECT_EQ(rebuilt->forward(batch(2))["history"].sizes()[1], 3);
  EXPECT_VALUE_ERROR(rebuilt->forward(batch(3)), "is set to [2]");
}

// Classes whose options have no defaults need a config here.
TEST(LayerJsonTest, EveryKnownClassIsBuiltFromItsJson) {
  const Json features =
      JsonValue<Nest<FeatureConfig>>::write(shared_features());
  const std::map<std::string, Json> configs{
      {"BatchNorm1d", {{"num_features", 2}}},
      {"EmbedReduce", {{"input_dim", 5}, {"output_dim", 2}}},
      {"LayerNorm", {{"normalized_shape", {2}}}},
      {"Linear", {{"in_features", 2}, {"out_features", 1}}},
      {"MLP", {{"units", {2}}}},
      {"PartialTPUEmbedding", {{"features", features}}},
      {"Ranker", {{"features", features}}},
      {"Sequential", {{"layers", Json::array()}}},
      {"Softmax", {{"dim", 1}}},
      {"TPUEmbedding", {{"features", features}}}};
  const std::vector<std::string> names = known_classes();
  EXPECT_GE(names.size(), 20U);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const auto config = configs.find(name);
    const auto layer = layer_from_json(
        {{"class_name", name},
         {"config",
          config == configs.end() ? Json::object() : config->second}});
    const Json json = reread(to_json(*layer));
    EXPECT_EQ(json.at("class_name"), name);
    EXPECT_EQ(reread(to_json(*layer_from_json(json))), json);
  }
}

TEST(LayerJsonTest, AConvertedLayerIsConvertedAgain) {
  Scale layer;
  layer->forward(at::ones({1, 2}, at::kDouble));
  const Json json = reread(to_json(layer));
  EXPECT_EQ(json["build_config"]["dtype"], "Double");
  EXPECT_EQ(from_json<Scale>(json)->parameters()[0].scalar_type(), at::kDouble);
  Json other = json;
  other["build_config"]["dtype"] = "Quarter";
  EXPECT_VALUE_ERROR(layer_from_json(other), "but got 'Quarter'");
}

TEST(LayerJsonTest, LayersOfLibTorchKeepTheirDtype) {
  torch::nn::Linear linear(2, 1);
  EXPECT_FALSE(to_json(*linear)["config"].contains("dtype"));
  linear->to(at::kDouble);
  const Json json = reread(to_json(*linear));
  EXPECT_EQ(json["config"]["dtype"], "Double");
  EXPECT_EQ(layer_from_json(json)->parameters()[0].scalar_type(), at::kDouble);
  // It has buffers only.
  torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(2).affine(false));
  norm->to(at::kBFloat16);
  const auto again = layer_from_json(reread(to_json(*norm)));
  ASSERT_EQ(again->buffers().size(), norm->buffers().size());
  for (size_t i = 0; i < norm->buffers().size(); ++i) {
    EXPECT_EQ(again->buffers()[i].dtype(), norm->buffers()[i].dtype());
  }
  Json other = json;
  other["config"]["dtype"] = "Quarter";
  EXPECT_VALUE_ERROR(
      layer_from_json(other),
      "[layer.Linear.dtype] dtype must be Double, Half or BFloat16, but got "
      "'Quarter'");
}

TEST(LayerJsonTest, ErrorsNameThePathOfAValueOutOfRange) {
  EXPECT_VALUE_ERROR(
      layer_from_json({{"class_name", "Dropout"}, {"config", {{"p", 2.0}}}}),
      "[layer.Dropout]");
}

TEST(LayerJsonTest, RefusesUnknownClassesAndKeys) {
  test::expect_refusals<Json>(
      {{{{"class_name", "Attention"}},
        "[layer] unknown class_name 'Attention'. Known: Sequential, "},
       {{{"class_name", "Scale"}, {"options", 1}}, "'options'"},
       {{{"class_name", "Scale"}, {"config", {{"rate", 1}}}}, "'rate'"},
       {{{"class_name", "ReLU"}, {"config", {{"rate", 1}}}}, "'rate'"},
       {{{"class_name", "Tanh"}, {"config", {{"rate", 1}}}}, "'rate'"},
       {{{"class_name", "Linear"}, {"config", {{"bias", true}}}},
        "in_features"},
       {{{"class_name", "Linear"},
         {"build_config", {{"input_shape", {nullptr, 2}}}},
         {"config", {{"in_features", 2}, {"out_features", 1}}}},
        "takes no build_config"},
       {{{"class_name", "Scale"}, {"config", {{"initial_value", "much"}}}},
        "layer.Scale.initial_value"},
       {Json::array(), "[layer]"},
       {Json(nullptr), "[layer]"},
       {Json::object(), "class_name"}},
      [&](const Json& x) { layer_from_json(x); });
  EXPECT_VALUE_ERROR(
      from_json<Concatenate>(Json{{"class_name", "Scale"}}),
      "[from_json] expected the JSON of a tessera::ConcatenateImpl, but its "
      "class_name is 'Scale'. Read it with layer_from_json().");
  EXPECT_VALUE_ERROR(
      to_json(torch::nn::Conv1d(1, 1, 1)),
      "Conv1dImpl can't be written as JSON. Known: ");
}

TEST(LayerJsonTest, RefusesABrokenSequential) {
  const auto sequential = [](const Json& layers) {
    return Json{{"class_name", "Sequential"}, {"config", {{"layers", layers}}}};
  };
  const Json relu = {{"name", "0"}, {"class_name", "ReLU"}};
  test::expect_refusals<Json>(
      {{"many", "layer.Sequential.layers"},
       {Json::array({relu, relu}),
        "layers[1]] name must be unique, not empty and without '.', but got '0'"},
       {Json::array({{{"name", "0"}, {"same_as", "1"}}}),
        "same_as must name a layer before this one, but got '1'"},
       {Json::array({{{"class_name", "ReLU"}}}), "name"}},
      [&](const Json& x) { layer_from_json(sequential(x)); });
  Json inner = sequential(Json::array());
  inner["name"] = "0";
  test::expect_refusals<Json>(
      {{Json::array({inner}), "a Sequential can't hold a Sequential"},
       {Json::array({{{"name", "0"}, {"class_name", "Attention"}}}),
        "[layer.Sequential.layers[0]] unknown class_name 'Attention'"}},
      [&](const Json& x) { layer_from_json(sequential(x)); });
}

TEST(LayerJsonTest, RefusesUnknownStrategies) {
  Json json = to_json(TPUEmbedding(embedding_options()));
  json["config"]["strategy"] = {{"class_name", "cloud"}};
  EXPECT_VALUE_ERROR(
      layer_from_json(json), "must be one of engine, host, dense");
  json["config"]["strategy"] = {
      {"class_name", "engine"}, {"config", {{"threads", 1}}}};
  EXPECT_VALUE_ERROR(layer_from_json(json), "'threads'");
  json["config"]["strategy"] = nullptr;  // saved by a sharded strategy
  EXPECT_EQ(
      from_json<TPUEmbedding>(json)->options().strategy, Strategy::fused());
  json["config"]["apply"] = "later";
  EXPECT_VALUE_ERROR(
      layer_from_json(json),
      "expected in_backward or on_step, but got 'later'");
}

class OtherScaleImpl : public LayerImpl<OtherScaleImpl, ScaleOptions> {
 public:
  static constexpr const char* kClassName = "Scale";
  using LayerImpl::LayerImpl;
  at::Tensor forward(const at::Tensor& input) {
    return input;
  }
};
TORCH_MODULE(OtherScale);

class OtherCrossImpl : public LayerImpl<OtherCrossImpl, ScaleOptions> {
 public:
  static constexpr const char* kClassName = "Cross";
  using LayerImpl::LayerImpl;
  at::Tensor forward(const at::Tensor& input) {
    return input;
  }
};
TORCH_MODULE(OtherCross);

TEST(LayerJsonTest, RefusesASecondClassOfTheSameName) {
  EXPECT_VALUE_ERROR(
      register_layer<OtherCross>(),
      "[register_layer] each class must have its own name, but another class has "
      "the name 'Cross'. Choose another kClassName.");
  EXPECT_TRUE(register_layer<Scale>());
  EXPECT_VALUE_ERROR(
      register_layer<OtherScale>(), "another class has the name 'Scale'");
}

TEST(LayerTest, IsBuiltByTheFirstCallOrBefore) {
  Scale layer;
  EXPECT_TRUE(layer->parameters().empty());
  EXPECT_FALSE(layer->input_shapes().has_value());
  layer->forward(at::ones({3, 2}, at::kDouble));
  ASSERT_EQ(layer->parameters().size(), 1U);
  EXPECT_EQ(layer->parameters()[0].scalar_type(), at::kDouble);
  EXPECT_EQ(layer->input_shapes()->leaf(), (PartialShape{std::nullopt, 2}));
  layer->build(PartialShape{7, 2});  // it agrees with [?, 2]
  EXPECT_VALUE_ERROR(
      layer->build(PartialShape{std::nullopt, 3}),
      "[Scale] was built for inputs [?, 2], but got [?, 3]");

  Scale other;
  EXPECT_VALUE_ERROR(other->build(PartialShape{3}), "expected [batch, dim]");
  EXPECT_FALSE(other->input_shapes().has_value());
  EXPECT_VALUE_ERROR(
      other->forward(at::Tensor()), "[Scale] expected a tensor with a batch");
  EXPECT_VALUE_ERROR(other->forward(at::ones({})), "but got a scalar");
}

TEST(LayerTest, ASecondBuildOfTablesMustAgree) {
  const auto shapes = [](const PartialShape& shape) {
    return Nest<PartialShape>{
        {"user", shape}, {"movie", shape}, {"history", shape}};
  };
  TPUEmbedding layer = test::layer_of(shared_features());
  layer->build(shapes({std::nullopt, 40}));
  // The number of ids that are combined may differ.
  layer->build(shapes({std::nullopt, 50}));
  EXPECT_EQ(layer->forward(features_of_batch())["user"].size(0), 2);
  layer->build(2);
  layer->build(shapes({std::nullopt, 50}));
  EXPECT_EQ(*layer->input_shapes(), shapes({2}));
  EXPECT_VALUE_ERROR(
      layer->build(3),
      "[feature 'user'] inconsistent shape: the output shape is set to [2], but "
      "this build gives [3]");
  EXPECT_EQ(*layer->input_shapes(), shapes({2}));
  auto rebuilt = from_json<TPUEmbedding>(reread(to_json(layer)));
  rebuilt->build(2);
  EXPECT_VALUE_ERROR(rebuilt->build(3), "this build gives [3]");

  PartialTPUEmbedding partial(PartialTPUEmbeddingOptions{
      .features = shared_features(), .size_threshold = 6});
  partial->build(shapes({std::nullopt, 1}));
  partial->build(shapes({7, 1}));
  EXPECT_VALUE_ERROR(
      partial->build(shapes({7, 2})),
      "[PartialTPUEmbedding 'user'] was built for inputs [?, 1], but got [7, 2]");
}

TEST(LayerTest, ABuiltLayerLoadsOnlyFittingParameters) {
  const auto saved = [](const PartialShape& inputs) {
    Cross layer;
    layer->build(inputs);
    std::stringstream stream;
    torch::save(layer, stream);
    return stream.str();
  };
  Cross layer;
  layer->build(PartialShape{8, 5});
  const auto load = [&](const PartialShape& inputs) {
    std::stringstream stream(saved(inputs));
    torch::load(layer, stream);
  };
  const at::Tensor before = layer->parameters()[0].clone();
  EXPECT_VALUE_ERROR(
      load({std::nullopt, 3}),
      "[Cross::load] was built for inputs [8, 5], but got [?, 3]");
  EXPECT_TENSOR_EQ(layer->parameters()[0], before);
  load({64, 5});
  EXPECT_FALSE(at::equal(layer->parameters()[0], before));
}

TEST(LayerTest, ComputesItsOutputShape) {
  const TPUEmbedding embedding(embedding_options());
  const auto shapes = embedding->compute_output_shape(
      {{"user", PartialShape{std::nullopt, 1}},
       {"movie", PartialShape{std::nullopt, std::nullopt}},
       {"history", PartialShape{std::nullopt, std::nullopt}}});
  EXPECT_EQ(shapes["user"], (PartialShape{std::nullopt, 4}));
  EXPECT_EQ(shapes["movie"], (PartialShape{std::nullopt, 4}));
  EXPECT_EQ(shapes["history"], (PartialShape{std::nullopt, 3, 4}));
  EXPECT_EQ(
      Concatenate()->compute_output_shape(shapes).leaf(),
      (PartialShape{std::nullopt, 20}));
  EXPECT_EQ(
      Concatenate()
          ->compute_output_shape(Nest<PartialShape>::list(
              {PartialShape{3}, PartialShape{3, std::nullopt}}))
          .leaf(),
      (PartialShape{3, std::nullopt}));
  EXPECT_VALUE_ERROR(
      Concatenate()->compute_output_shape({}),
      "[Concatenate] expected one activation or more, but got an empty nest.");
  EXPECT_VALUE_ERROR(
      Concatenate()->compute_output_shape(PartialShape{}), "batch dimension");
  EXPECT_VALUE_ERROR(
      Concatenate()->compute_output_shape(
          Nest<PartialShape>::list({PartialShape{3}, PartialShape{4}})),
      "the same batch size or one row, but this one has 4 rows and an earlier one 3");
  EXPECT_VALUE_ERROR(
      embedding->compute_output_shape({{"user", PartialShape{1}}}),
      "missing entry 'movie'");
  // compute_output_shape() does not build the layer.
  EXPECT_FALSE(embedding->input_shapes().has_value());
}

TEST(LayerTest, SummaryListsPartsAndTables) {
  Ranker model(RankerOptions{
      .features = shared_features(), .optimizer = optim::SGD{}, .units = {4}});
  const std::string text = model->summary();
  EXPECT_CONTAINS(text, "embedding");
  EXPECT_CONTAINS(text, "Linear");
  EXPECT_CONTAINS(text, "[4, 4] [4]");
  EXPECT_CONTAINS(text, "20 dense parameters");
  EXPECT_CONTAINS(text, "movies");
  torch::nn::Sequential unbuilt{Scale()};
  EXPECT_CONTAINS(summary(*unbuilt), "not built");
}

}  // namespace layer_json_test

}  // namespace tessera
