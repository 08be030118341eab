// SPDX-License-Identifier: Apache-2.0
#include "tests/layers/layer_test_util.h"

namespace tessera::test::tpu_embedding_test {

using Shape = std::vector<int64_t>;

TPUEmbedding make_layer(
    Nest<FeatureConfig> features,
    Strategy strategy = Strategy::fused()) {
  return layer_of(
      std::move(features),
      optim::SGD{.learning_rate = 1.0},
      {.strategy = std::move(strategy)});
}

class TPUEmbeddingOnBothStrategies : public testing::TestWithParam<Strategy> {
 protected:
  TPUEmbedding layer(Nest<FeatureConfig> features) const {
    return make_layer(std::move(features), GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    TPUEmbeddingOnBothStrategies,
    strategies(),
    strategy_name);

TEST_P(TPUEmbeddingOnBothStrategies, ActivationsHaveTheNestOfTheConfigs) {
  const auto users = numbered_table("users", 8, 2);
  const auto items = numbered_table("items", 8, 3);
  auto embedding = layer(
      {{"user", FeatureConfig{.table = users}},
       {"seen",
        Nest<FeatureConfig>::list(
            {FeatureConfig{.table = items},
             FeatureConfig{.table = items, .max_sequence_length = 2}})}});

  // Maps are matched by key, so a batch may have another order.
  const Nest<at::Tensor> activations = embedding->forward(
      {{"seen",
        Features::list({ragged({{1, 2}, {}}), ragged({{3}, {4, 5, 6}})})},
       {"user", int64s({7, 0})}});

  EXPECT_EQ(
      activations.paths(),
      (std::vector<std::string>{"user", "seen/0", "seen/1"}));
  expect_close(activations["user"], floats({2, 2}, {7, 7, 0, 0}));
  expect_close(activations.at("seen")[0], floats({2, 3}, {3, 3, 3, 0, 0, 0}));
  expect_close(
      activations.at("seen")[1],
      floats({2, 2, 3}, {3, 3, 3, 0, 0, 0, 4, 4, 4, 5, 5, 5}));
}

TEST_P(TPUEmbeddingOnBothStrategies, MapsInMapsAreMatchedByKey) {
  const auto table = numbered_table("t", 9, 1);
  const FeatureConfig config{.table = table};
  auto embedding = layer(
      {{"user", Nest<FeatureConfig>{{"id", config}, {"age", config}}},
       {"item", Nest<FeatureConfig>{{"id", config}}}});
  const auto activations = embedding->forward(
      {{"item", Features{{"id", int64s({3})}}},
       {"user", Features{{"age", int64s({2})}, {"id", int64s({1})}}}});
  EXPECT_EQ(
      activations.paths(),
      (std::vector<std::string>{"user/id", "user/age", "item/id"}));
  expect_close(activations.at("user")["id"], floats({1, 1}, {1}));
  expect_close(activations.at("user")["age"], floats({1, 1}, {2}));
  expect_close(activations.at("item")["id"], floats({1, 1}, {3}));
  EXPECT_INDEX_ERROR(
      (embedding->forward(
          {{"item", Features{{"id", int64s({3})}}},
           {"user", Features{{"age", int64s({0, 9})}, {"id", int64s({1})}}}})),
      "[feature 'user/age'] table 't' has ids in [0, 9), but got 9 at "
      "position 1");
}

TEST_P(TPUEmbeddingOnBothStrategies, Int32IdsGiveTheSameAsInt64Ids) {
  const auto table = numbered_table("t", 9, 2);
  auto embedding = layer(
      features_of({{"dense", table}, {"sparse", table}, {"ragged", table}}));
  const Rows rows{{1, 8}, {}, {-1, 4}};
  SparseFeature sparse_ids = sparse(rows, 2);
  RaggedFeature ragged_ids = ragged(rows);
  const auto from_int64 = embedding->forward(
      {{"dense", int64s({0, 8, 3})},
       {"sparse", sparse_ids},
       {"ragged", ragged_ids}});
  sparse_ids.values = sparse_ids.values.to(at::kInt);
  ragged_ids.values = ragged_ids.values.to(at::kInt);
  ragged_ids.row_splits = ragged_ids.row_splits.to(at::kInt);
  const auto from_int32 = embedding->forward(
      {{"dense", int32s({0, 8, 3})},
       {"sparse", sparse_ids},
       {"ragged", ragged_ids}});
  for (const std::string feature : {"dense", "sparse", "ragged"}) {
    EXPECT_TENSOR_EQ(from_int32[feature], from_int64[feature]) << feature;
  }
  expect_close(from_int32["sparse"], floats({3, 2}, {9, 9, 0, 0, 4, 4}));
}

TEST_P(TPUEmbeddingOnBothStrategies, ASingleConfigGivesASingleActivation) {
  auto embedding = layer(FeatureConfig{.table = numbered_table("t", 4, 2)});
  const Nest<at::Tensor> activation = embedding->forward(int64s({3, 1}));
  ASSERT_TRUE(activation.is_leaf());
  expect_close(activation.leaf(), floats({2, 2}, {3, 3, 1, 1}));
}

TEST_P(TPUEmbeddingOnBothStrategies, FeaturesWithTheSameTableObjectShareIt) {
  const auto shared = numbered_table("shared", 4, 2);
  auto embedding = layer(features_of(
      {{"a", shared}, {"b", numbered_table("other", 4, 2)}, {"c", shared}}));
  EXPECT_EQ(embedding->embedding_tables().size(), 2);
  write_table(embedding, "shared", at::full({4, 2}, 9.0));
  const at::Tensor ids = int64s({1});
  const auto activations =
      embedding->forward({{"a", ids}, {"b", ids}, {"c", ids}});
  expect_close(activations["a"], floats({1, 2}, {9, 9}));
  expect_close(activations["b"], floats({1, 2}, {1, 1}));
  expect_close(activations["c"], floats({1, 2}, {9, 9}));
}

TEST_P(TPUEmbeddingOnBothStrategies, UnnamedTablesAreNumberedByFirstUse) {
  const auto first = numbered_table("", 4, 2);
  const auto second = numbered_table("named", 4, 2);
  const auto third = numbered_table("", 4, 3);
  const auto embedding = layer(
      features_of({{"a", first}, {"b", second}, {"c", first}, {"d", third}}));
  std::vector<std::string> names;
  for (const auto& entry : embedding->embedding_tables()) {
    names.push_back(entry.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"table_0", "named", "table_2"}));
  EXPECT_EQ(embedding->embedding_tables()[third].sizes(), (Shape{4, 3}));
}

TEST_P(TPUEmbeddingOnBothStrategies, WritesToEmbeddingTablesChangeLookups) {
  const auto table = numbered_table("t", 4, 2);
  auto embedding = layer(FeatureConfig{.table = table});
  const at::Tensor rows = embedding->embedding_tables()[table];
  rows[2].fill_(5.0);
  expect_close(embedding->forward(int64s({2})).leaf(), floats({1, 2}, {5, 5}));
  EXPECT_FALSE(rows.requires_grad());
  EXPECT_VALUE_ERROR(
      embedding->embedding_tables()["u"], "no table 'u'. Known: t");
  EXPECT_VALUE_ERROR(
      embedding->embedding_tables()[numbered_table("t", 4, 2)],
      "no feature of this layer uses the table 't'");
}

// TPUEmbeddingV0 of TensorFlow gives ordinary variables, which any optimizer trains.
TEST_P(TPUEmbeddingOnBothStrategies, VariablesOfTheTablesCanBeTrained) {
  auto embedding = layer(FeatureConfig{.table = numbered_table("t", 4, 2)});
  std::vector<at::Tensor> variables;
  for (const auto& table : embedding->embedding_tables()) {
    if (table.variable.defined()) {
      variables.push_back(table.variable);
    }
  }
  if (GetParam().is_fused()) {
    EXPECT_TRUE(variables.empty());
    return;
  }
  ASSERT_EQ(variables.size(), 1U);
  EXPECT_TRUE(variables[0].is_same(embedding->parameters()[0]));
  const at::Tensor loss = embedding->forward(int64s({2})).leaf().sum();
  const auto gradients = torch::autograd::grad({loss}, variables);
  expect_close(
      gradients[0].to_dense(), floats({4, 2}, {0, 0, 0, 0, 1, 1, 0, 0}));
  torch::optim::SGD optimizer(variables, 0.5);
  embedding->forward(int64s({2})).leaf().sum().backward();
  optimizer.step();
  expect_close(
      embedding->embedding_tables()["t"],
      floats({4, 2}, {0, 0, 1, 1, 1.5F, 1.5F, 3, 3}));
}

TEST_P(
    TPUEmbeddingOnBothStrategies,
    ABatchOfZeroRowsWorksForEveryKindOfFeature) {
  const auto table = numbered_table("t", 4, 3);
  auto embedding = layer(
      {{"dense", FeatureConfig{.table = table}},
       {"grid", FeatureConfig{.table = table}},
       {"sparse", FeatureConfig{.table = table}},
       {"ragged", FeatureConfig{.table = table}},
       {"sequence", FeatureConfig{.table = table, .max_sequence_length = 2}},
       {"columns", FeatureConfig{.table = table, .max_sequence_length = 4}},
       {"cube", FeatureConfig{.table = table}}});
  const SparseFeature cube{
      at::zeros({0, 3}, at::kLong), int64s({}), int64s({0, 5, 2})};
  const auto activations = embedding->forward(
      {{"dense", at::zeros({0}, at::kLong)},
       {"grid", at::zeros({0, 5}, at::kInt)},
       {"sparse", sparse({}, 4)},
       {"ragged", ragged({})},
       {"sequence", ragged({})},
       {"columns", sparse({}, 7)},
       {"cube", cube}},
      {{"dense", std::nullopt},
       {"grid", std::nullopt},
       {"sparse", at::zeros({0}, at::kFloat)},
       {"ragged", std::nullopt},
       {"sequence", std::nullopt},
       {"columns", std::nullopt},
       {"cube", at::zeros({0}, at::kFloat)}});
  EXPECT_EQ(activations["dense"].sizes(), (Shape{0, 3}));
  EXPECT_EQ(activations["grid"].sizes(), (Shape{0, 5, 3}));
  EXPECT_EQ(activations["sparse"].sizes(), (Shape{0, 3}));
  EXPECT_EQ(activations["ragged"].sizes(), (Shape{0, 3}));
  EXPECT_EQ(activations["sequence"].sizes(), (Shape{0, 2, 3}));
  EXPECT_EQ(activations["columns"].sizes(), (Shape{0, 4, 3}));
  EXPECT_EQ(activations["cube"].sizes(), (Shape{0, 5, 3}));

  const auto before = tables_of(embedding);
  sum_of(activations).backward();
  expect_same_tables(embedding, before);
}

TEST_P(TPUEmbeddingOnBothStrategies, WeightsHaveTheKindOfTheFeatureOrAreFlat) {
  const auto table = numbered_table("t", 4, 1);
  auto embedding =
      layer(features_of({{"a", table}, {"b", table}, {"c", table}}));
  const RaggedFeature ids = ragged({{1, 2}, {3}});
  const at::Tensor weights = floats({2.0F, 3.0F, 4.0F});
  const auto activations = embedding->forward(
      {{"a", ids}, {"b", ids}, {"c", ids}},
      {{"a", RaggedFeature{weights, ids.row_splits}},
       {"b", weights},
       {"c", std::nullopt}});
  expect_close(activations["a"], floats({2, 1}, {8, 12}));
  expect_close(activations["b"], floats({2, 1}, {8, 12}));
  expect_close(activations["c"], floats({2, 1}, {3, 3}));
  EXPECT_VALUE_ERROR(
      (embedding->forward(
          {{"a", ids}, {"b", ids}, {"c", ids}},
          {{"a", std::nullopt}, {"b", floats({1.0F})}, {"c", std::nullopt}})),
      "[feature 'b'] weights must have one value per id, so shape [3], but "
      "got shape");
}

TEST_P(TPUEmbeddingOnBothStrategies, IdsMayBeOverwrittenAfterForward) {
  auto embedding = layer(FeatureConfig{.table = numbered_table("t", 4, 1)});
  auto expected = layer(FeatureConfig{.table = numbered_table("t", 4, 1)});
  const at::Tensor ids = int64s({1, 2});
  const at::Tensor activation = embedding->forward(ids).leaf();
  expected->forward(int64s({1, 2})).leaf().sum().backward();
  ids.fill_(0);
  activation.sum().backward();
  expect_same_tables(embedding, tables_of(expected));
  if (!GetParam().is_fused()) {
    EXPECT_TENSOR_EQ(
        embedding->parameters()[0].grad(), expected->parameters()[0].grad());
  }
}

TEST_P(TPUEmbeddingOnBothStrategies, ToConvertsActivationsButNoTable) {
  auto embedding = layer(FeatureConfig{.table = numbered_table("t", 4, 1)});
  const at::Tensor ids = int64s({3});
  for (const torch::Dtype dtype :
       {torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kFloat}) {
    embedding->to(dtype);
    EXPECT_EQ(embedding->activation_dtype(), dtype);
    const at::Tensor activation = embedding->forward(ids).leaf();
    EXPECT_EQ(activation.scalar_type(), dtype);
    expect_close(activation, floats({1, 1}, {3}));
    for (const auto& parameter : embedding->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    }
    EXPECT_EQ(embedding->embedding_tables()["t"].scalar_type(), at::kFloat);
  }
  embedding->to(torch::kBFloat16);
  auto pending = embedding->begin_forward(ids);
  EXPECT_EQ(
      embedding->finish_forward(std::move(pending)).leaf().scalar_type(),
      torch::kBFloat16);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(embedding->forward(ids).leaf().scalar_type(), torch::kBFloat16);
}

TEST_P(
    TPUEmbeddingOnBothStrategies,
    GradientsOfConvertedActivationsAreFloat32) {
  for (const torch::Dtype dtype : {torch::kDouble, torch::kBFloat16}) {
    auto embedding = layer(FeatureConfig{.table = numbered_table("t", 4, 1)});
    embedding->to(dtype);
    embedding->forward(int64s({3, 3})).leaf().mul(0.25).sum().backward();
    if (GetParam().is_fused()) {
      EXPECT_EQ(embedding->embedding_tables()["t"][3].item<float>(), 2.5F);
    } else {
      const at::Tensor gradient = embedding->parameters()[0].grad();
      EXPECT_EQ(gradient.scalar_type(), at::kFloat);
      EXPECT_EQ(gradient[3].item<float>(), 0.5F);
    }
  }
}

TEST_P(TPUEmbeddingOnBothStrategies, ToMovesActivationsToTheDevice) {
  auto embedding = layer(FeatureConfig{.table = numbered_table("t", 4, 2)});
  embedding->to(torch::Device("meta"), torch::kDouble);
  const at::Tensor activation = embedding->forward(int64s({3, 1})).leaf();
  EXPECT_TRUE(activation.is_meta());
  EXPECT_EQ(activation.scalar_type(), torch::kDouble);
  EXPECT_EQ(activation.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_TRUE(embedding->embedding_tables()["t"].is_cpu());
  EXPECT_TRUE(embedding->parameters()[0].is_cpu());
  embedding->to(torch::kCPU);
  EXPECT_TRUE(embedding->forward(int64s({3})).leaf().is_cpu());
}

TEST_P(TPUEmbeddingOnBothStrategies, ClonesConvertLikeTheOriginal) {
  auto embedding = layer(FeatureConfig{.table = numbered_table("t", 4, 2)});
  embedding->to(torch::kBFloat16);
  const auto copy = [&](const std::optional<torch::Device>& device) {
    return std::dynamic_pointer_cast<TPUEmbeddingImpl>(
        embedding->clone(device));
  };
  EXPECT_EQ(copy(std::nullopt)->activation_dtype(), torch::kBFloat16);
  EXPECT_TRUE(copy(std::nullopt)->activation_device().is_cpu());
  EXPECT_TRUE(
      copy(torch::Device("meta"))->forward(int64s({3})).leaf().is_meta());
  EXPECT_TRUE(embedding->activation_device().is_cpu());
}

TEST_P(TPUEmbeddingOnBothStrategies, ToRefusesUnusableDtypesAndDevices) {
  auto embedding = layer(FeatureConfig{.table = numbered_table("t", 4, 1)});
  embedding->to(torch::kDouble);
  EXPECT_VALUE_ERROR(
      embedding->to(torch::kLong),
      "[TPUEmbedding::to] activations must be float32, float64, bfloat16 or "
      "float16, but got Long");
  if (!at::hasCUDA()) {
    EXPECT_VALUE_ERROR(
        embedding->to(torch::Device("cuda"), torch::kFloat),
        "[TPUEmbedding::to] activations must go to a device that LibTorch can "
        "use, but got cuda");
    EXPECT_VALUE_ERROR(
        embedding->clone(torch::Device("cuda")),
        "[TPUEmbedding::clone] activations must go to a device that LibTorch "
        "can use, but got cuda");
    EXPECT_VALUE_ERROR(
        embedding->to(torch::kCUDA),
        "but got cuda: this LibTorch was built without it. Choose another device, or leave the model on the cpu.");
  }
  EXPECT_EQ(embedding->activation_dtype(), torch::kDouble);
  EXPECT_TRUE(embedding->activation_device().is_cpu());
}

TEST(TPUEmbeddingTest, IsBuiltFromFeaturesAndAnOptimizer) {
  const auto table = numbered_table("t", 4, 1);
  TPUEmbedding in_braces(
      {{"a", FeatureConfig{.table = table}}}, optim::SGD{.learning_rate = 0.5});
  const Nest<FeatureConfig> features{{"a", FeatureConfig{.table = table}}};
  const TPUEmbedding by_name(features, optim::SGD{.learning_rate = 0.5});
  const TPUEmbedding several(
      {{"a", FeatureConfig{.table = table}},
       {"b", {FeatureConfig{.table = table}, FeatureConfig{.table = table}}}},
      optim::OptimizerSpec(optim::Adam{}));
  const TPUEmbeddingOptions expected{
      .features = features, .optimizer = optim::SGD{.learning_rate = 0.5}};
  EXPECT_EQ(in_braces->options(), expected);
  EXPECT_EQ(by_name->options(), expected);
  EXPECT_EQ(
      several->options().features.paths(),
      (std::vector<std::string>{"a", "b/0", "b/1"}));
  in_braces->forward({{"a", int64s({2})}})["a"].sum().backward();
  EXPECT_EQ(in_braces->embedding_tables()["t"][2].item<float>(), 1.5F);
}

TEST(TPUEmbeddingTest, AListOfFeaturesMayBeInBraces) {
  const auto table = numbered_table("t", 4, 1);
  auto embedding = make_layer(
      {FeatureConfig{.table = table}, FeatureConfig{.table = table}});
  const auto activations = embedding->forward({int64s({1}), int64s({3})});
  EXPECT_EQ(activations[1].item<float>(), 3.0F);
}

TEST(TPUEmbeddingTest, TheVirtualVariableIsTheOnlyParameterOfFused) {
  auto embedding = make_layer(features_of(
      {{"a", numbered_table("t", 4, 2)}, {"b", numbered_table("u", 4, 2)}}));
  const auto parameters = embedding->named_parameters();
  EXPECT_EQ(parameters.keys(), std::vector<std::string>{"virtual_variable"});
  EXPECT_TENSOR_EQ(parameters["virtual_variable"], at::zeros({1}));
  EXPECT_TRUE(parameters["virtual_variable"].requires_grad());
  EXPECT_TRUE(embedding->buffers().empty());
  EXPECT_TRUE(
      embedding->virtual_variable().is_same(parameters["virtual_variable"]));
}

TEST(TPUEmbeddingTest, TheHostHasItsTablesAsParameters) {
  auto embedding = make_layer(
      features_of(
          {{"a", numbered_table("class", 4, 2)},
           {"b", numbered_table("u", 5, 2)}}),
      Strategy::host());
  const auto parameters = embedding->named_parameters();
  EXPECT_EQ(
      parameters.keys(), (std::vector<std::string>{"table_0", "table_1"}));
  EXPECT_EQ(parameters["table_1"].sizes(), (Shape{5, 2}));
  EXPECT_TRUE(
      embedding->embedding_tables()["u"].is_alias_of(parameters["table_1"]));
  EXPECT_TORCH_ERROR(
      embedding->virtual_variable(),
      "Strategy::host() has no virtual variable");
}

TEST(TPUEmbeddingTest, WithoutOptimizerTablesCanBeReadButNotTrained) {
  const auto trained = make_table(
      {.name = "trained",
       .vocabulary_size = 4,
       .dim = 2,
       .optimizer = optim::SGD{.learning_rate = 1.0}});
  TPUEmbedding embedding = layer_of(
      features_of({{"a", trained}, {"b", numbered_table("plain", 4, 2)}}));
  const auto before = tables_of(embedding);
  const Features batch{{"a", int64s({1})}, {"b", int64s({2})}};
  EXPECT_VALUE_ERROR(
      embedding->forward(batch)["b"].sum().backward(),
      "[table 'plain'] has no optimizer, but gradients reached it");
  expect_same_tables(embedding, before);
  EXPECT_EQ(embedding->iterations(), 0);

  embedding->forward(batch)["a"].sum().backward();
  EXPECT_EQ(embedding->iterations(), 1);
  EXPECT_FALSE(at::equal(tables_of(embedding)[0], before[0]));
  EXPECT_TENSOR_EQ(tables_of(embedding)[1], before[1]);

  embedding->virtual_variable().requires_grad_(false);
  const auto frozen = embedding->forward(batch);
  EXPECT_FALSE(frozen["b"].requires_grad());
  expect_close(frozen["b"], floats({1, 2}, {2, 2}));
}

TEST(TPUEmbeddingTest, SparseTensorsOfWeightsCannotReceiveAGradient) {
  TPUEmbedding embedding =
      layer_of(features_of({{"a", numbered_table("t", 4, 2)}}));
  const at::Tensor indices = at::zeros({2, 1}, at::kLong);
  const at::Tensor ids = at::sparse_coo_tensor(
      indices, at::ones({1}, at::kLong), {1, 1}, at::kLong);
  const at::Tensor weights =
      at::sparse_coo_tensor(indices, at::ones({1}), {1, 1}, at::kFloat);
  const Features batch{{"a", ids}};
  embedding->forward(batch, {{"a", weights}});
  const at::Tensor trained = weights.detach().requires_grad_(true);
  EXPECT_VALUE_ERROR(
      embedding->forward(batch, (Weights{{"a", trained}})),
      "weights of sparse COO layout can't receive a gradient");
}

TEST(TPUEmbeddingTest, UnusableOptionsAreErrors) {
  EXPECT_VALUE_ERROR(make_layer({}), "features must have at least one feature");
  EXPECT_VALUE_ERROR(
      (make_layer({{"user", FeatureConfig{}}})), "'user'] table");
  const auto first = numbered_table("same", 4, 2);
  const auto second = numbered_table("same", 4, 2);
  EXPECT_VALUE_ERROR(
      (make_layer(features_of({{"a", first}, {"b", second}}))),
      "[TableConfig 'same'] tables of one layer must have different names");
  EXPECT_VALUE_ERROR(
      layer_of(
          FeatureConfig{.table = first},
          optim::Adagrad{.initial_accumulator_value = 0.0}),
      "[TPUEmbeddingOptions] Adagrad: initial_accumulator_value must be > 0");
}

TEST(TPUEmbeddingTest, SummaryIsATable) {
  const auto users = make_table(
      {.name = "users",
       .vocabulary_size = 131072,
       .dim = 8,
       .optimizer = optim::Adam{}});
  TPUEmbedding embedding = layer_of(
      features_of({{"user", users}, {"item", numbered_table("items", 4, 2)}}));
  const std::string expected =
      "table  rows    dim  dtype    combiner  optimizer  slots                "
      "memory\n"
      "users  131072  8    float32  mean      Adam       momenta, velocities  "
      "12.0 MiB\n"
      "items  4       2    float32  sum       -          -                    "
      "0.0 MiB\n"
      "2 tables, 2 features, 12.0 MiB, strategy fused\n";
  EXPECT_EQ(embedding->summary(), expected);
  std::ostringstream stream;
  stream << embedding;
  EXPECT_EQ(stream.str(), "tessera::TPUEmbedding(\n" + expected + ")");
  const TPUEmbedding single = layer_of(features_of({{"user", users}}));
  const std::string text = single->summary();
  EXPECT_CONTAINS(text, "\n1 table, 1 feature, 12.0 MiB");
}

TEST(StrategyTest, ShardsNeedRanks) {
  EXPECT_VALUE_ERROR(
      Strategy::sharded({}),
      "Call distributed::sharded_strategy(backend) instead.");
}

// The update reads gradients in place if their rows are equally far apart.
TEST(TPUEmbeddingGradientTest, AnyLayoutOfAGradientGivesTheSameUpdate) {
  constexpr int64_t kBatch = 5;
  constexpr int64_t kDim = 3;
  const auto table_after = [](const FeatureConfig& config,
                              const Feature& ids,
                              const at::Tensor& gradient) {
    TPUEmbedding layer = make_layer({{"x", config}});
    const at::Tensor activation = layer->forward({{"x", ids}})["x"];
    EXPECT_EQ(activation.sizes(), gradient.sizes());
    activation.backward(gradient);
    return layer->embedding_tables()[config.table->name].clone();
  };
  const auto check = [&](const FeatureConfig& config,
                         const Feature& ids,
                         const std::vector<at::Tensor>& gradients) {
    for (const at::Tensor& gradient : gradients) {
      SCOPED_TRACE(c10::str(gradient.strides()));
      expect_close(
          table_after(config, ids, gradient),
          table_after(
              config, ids, gradient.clone(at::MemoryFormat::Contiguous)));
    }
  };
  const at::Tensor many = at::arange(1000, at::kFloat);
  check(
      FeatureConfig{.table = numbered_table("rows", 8, kDim)},
      int64s({1, 7, 1, 0, 2}),
      {many.as_strided({kBatch, kDim}, {7, 1}),
       many.as_strided({kBatch, kDim}, {0, 1}),
       many.as_strided({kBatch, kDim}, {1, kBatch}),
       many.as_strided({kBatch, kDim}, {9, 2}),
       many.as_strided({kBatch, kDim}, {0, 0})});
  check(
      FeatureConfig{
          .table = numbered_table("sequences", 8, kDim),
          .max_sequence_length = 2},
      ragged({{1, 2}, {}, {7}, {1, 1}, {3}}),
      {many.as_strided({kBatch, 2, kDim}, {20, 10, 1}),
       many.as_strided({kBatch, 2, kDim}, {20, 4, 1}),
       many.as_strided({kBatch, 2, kDim}, {3, 15, 1}),
       many.as_strided({kBatch, 2, kDim}, {0, 0, 1})});
  check(
      FeatureConfig{.table = numbered_table("one", 8, 1)},
      int64s({1, 7, 1, 0, 2}),
      {many.as_strided({kBatch, 1}, {4, 9})});
}

}  // namespace tessera::test::tpu_embedding_test
