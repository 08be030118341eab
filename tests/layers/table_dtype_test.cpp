// SPDX-License-Identifier: Apache-2.0
// Tables stored in 16 bits, through the public layer.
#include <tessera/serialization/config_json.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::table_dtype_test {

constexpr int64_t kRows = 500;
constexpr int64_t kDim = 24;

struct Setting {
  at::ScalarType dtype = at::kBFloat16;
  optim::OptimizerSpec optimizer = optim::Adagrad{.learning_rate = 0.05};
  bool stochastic_rounding = true;
  uint64_t seed = 1;
};

TPUEmbedding make_layer(const Setting& setting) {
  const TablePtr table = make_table(
      {.name = "items",
       .vocabulary_size = kRows,
       .dim = kDim,
       .combiner = Combiner::kMean,
       .dtype = setting.dtype,
       .stochastic_rounding = setting.stochastic_rounding});
  return layer_of(
      features_of({{"item", table}}),
      setting.optimizer,
      {.seed = setting.seed});
}

Features random_batch(uint32_t seed) {
  std::mt19937 random(seed);
  Rows rows(64);
  for (auto& row : rows) {
    row.resize(random() % 9);
    for (int64_t& id : row) {
      id = random() % kRows;
    }
  }
  return {{"item", ragged(rows)}};
}

void train(TPUEmbedding& layer, int steps, uint32_t first_batch = 0) {
  for (int step = 0; step < steps; ++step) {
    const at::Tensor activations =
        layer->forward(random_batch(first_batch + step))["item"];
    torch::autograd::backward({activations.square().sum()}, {});
  }
}

at::Tensor table_of(const TPUEmbedding& layer) {
  return tables_of(layer)[0];
}

class TableDtypeTest : public testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    TableDtypeTest,
    testing::Values(at::kBFloat16, at::kHalf),
    [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(TableDtypeTest, StartsAsTheFloat32TableRounded) {
  const at::Tensor halves = table_of(make_layer({.dtype = GetParam()}));
  const at::Tensor floats = table_of(make_layer({.dtype = at::kFloat}));
  ASSERT_EQ(halves.scalar_type(), GetParam());
  EXPECT_TENSOR_EQ(halves, floats.to(GetParam()));
}

TEST_P(TableDtypeTest, LooksUpInFloat32) {
  TPUEmbedding layer = make_layer({.dtype = GetParam()});
  TPUEmbedding reference = make_layer({.dtype = at::kFloat});
  {
    const at::NoGradGuard no_grad;
    for (const auto& entry : reference->embedding_tables()) {
      at::Tensor rows = entry.parameters;
      rows.copy_(table_of(layer));
    }
  }
  const Features batch = random_batch(3);
  const at::Tensor actual = layer->forward(batch)["item"];
  EXPECT_EQ(actual.scalar_type(), at::kFloat);
  EXPECT_TENSOR_EQ(actual, reference->forward(batch)["item"]);
}

TEST_P(TableDtypeTest, TrainsCloseToFloat32) {
  for (const optim::OptimizerSpec& optimizer :
       std::vector<optim::OptimizerSpec>{
           optim::Adagrad{.learning_rate = 0.05},
           optim::Adamax{.learning_rate = 0.01},
           optim::Nadam{.learning_rate = 0.01}}) {
    SCOPED_TRACE(optim::name_of(optimizer));
    TPUEmbedding layer =
        make_layer({.dtype = GetParam(), .optimizer = optimizer});
    TPUEmbedding reference =
        make_layer({.dtype = at::kFloat, .optimizer = optimizer});
    const at::Tensor start = table_of(reference);
    train(layer, 20);
    train(reference, 20);
    const at::Tensor expected = table_of(reference);
    const auto moved = (expected - start).norm().item<double>();
    const auto error =
        (table_of(layer).to(at::kFloat) - expected).norm().item<double>();
    EXPECT_GT(moved, 1.0);
    EXPECT_LT(error, 0.1 * moved);
  }
}

TEST_P(TableDtypeTest, SameSeedSameBitsForAnyNumberOfThreads) {
  std::vector<at::Tensor> tables;
  for (const int count : {1, 2, 4}) {
    const Threads threads(count);
    TPUEmbedding layer = make_layer({.dtype = GetParam()});
    train(layer, 3);
    tables.push_back(table_of(layer));
  }
  EXPECT_TENSOR_EQ(tables[0], tables[1]);
  EXPECT_TENSOR_EQ(tables[0], tables[2]);
}

// Each step is far smaller than half a unit in the last place.
TEST_P(TableDtypeTest, SmallStepsCountOnAverage) {
  const Features all_rows{{"item", at::arange(kRows, at::kLong)}};
  const auto mean_after = [&](bool stochastic, uint64_t seed) {
    TPUEmbedding layer = make_layer(
        {.dtype = GetParam(),
         .optimizer = optim::SGD{.learning_rate = 1e-4},
         .stochastic_rounding = stochastic,
         .seed = seed});
    {
      const at::NoGradGuard no_grad;
      for (const auto& entry : layer->embedding_tables()) {
        at::Tensor rows = entry.parameters;
        rows.fill_(1.0);
      }
    }
    for (int step = 0; step < 100; ++step) {
      const at::Tensor activations = layer->forward(all_rows)["item"];
      torch::autograd::backward({activations}, {at::ones_like(activations)});
    }
    return table_of(layer).to(at::kDouble).mean().item<double>();
  };
  // The rounding errors of 12000 numbers are independent and at most 0.02 each, so
  // the mean is off by less than 1e-3.
  EXPECT_NEAR(mean_after(true, 1), 0.99, 1e-3);
  EXPECT_NE(mean_after(true, 1), mean_after(true, 2));
  EXPECT_EQ(mean_after(false, 1), 1.0);
}

TEST_P(TableDtypeTest, ContinuesBitForBitAfterSaveAndLoad) {
  const Setting setting{
      .dtype = GetParam(), .optimizer = optim::Adam{.learning_rate = 0.01}};
  TPUEmbedding whole = make_layer(setting);
  train(whole, 3);
  TPUEmbedding resumed = make_layer(setting);
  copy_by_archive(whole, resumed);
  train(whole, 3, 3);
  train(resumed, 3, 3);
  EXPECT_TENSOR_EQ(table_of(whole), table_of(resumed));
}

TEST_P(TableDtypeTest, RefusesAnArchiveOfAnotherDtype) {
  std::stringstream stream;
  torch::save(make_layer({.dtype = at::kFloat}), stream);
  TPUEmbedding layer = make_layer({.dtype = GetParam()});
  EXPECT_VALUE_ERROR(
      torch::load(layer, stream), "parameters is " + to_string(GetParam()));
}

TEST_P(TableDtypeTest, ACustomRuleSeesFloat32) {
  TPUEmbedding layer = make_layer(
      {.dtype = GetParam(),
       .optimizer = optim::CustomOptimizer{
           .learning_rate = 0.5,
           .rule = optim::CustomRule("descend", [](optim::CustomRows& rows) {
             EXPECT_EQ(rows.weights.scalar_type(), at::kFloat);
             rows.weights.sub_(rows.gradients, rows.learning_rate);
           })}});
  TPUEmbedding reference = make_layer(
      {.dtype = GetParam(), .optimizer = optim::SGD{.learning_rate = 0.5}});
  train(layer, 4);
  train(reference, 4);
  EXPECT_TENSOR_EQ(table_of(layer), table_of(reference));
}

TEST_P(TableDtypeTest, WeightsGetTheGradientOfFloat32Rows) {
  const at::Tensor ids = at::tensor({3, 5, 7}, at::kLong);
  const at::Tensor splits = at::tensor({0, 2, 3}, at::kLong);
  std::vector<at::Tensor> gradients;
  for (const at::ScalarType dtype : {GetParam(), at::kFloat}) {
    TPUEmbedding layer = make_layer({.dtype = dtype});
    at::Tensor weights = at::full({3}, 0.5, at::kFloat).requires_grad_(true);
    const at::Tensor activations = layer->forward(
        {{"item", RaggedFeature{.values = ids, .row_splits = splits}}},
        {{"item",
          RaggedFeature{.values = weights, .row_splits = splits}}})["item"];
    torch::autograd::backward({activations.square().sum()}, {});
    gradients.push_back(weights.grad());
  }
  EXPECT_TRUE(at::allclose(gradients[0], gradients[1], 0.05, 0.01));
}

TEST_P(TableDtypeTest, CopiesKeepTheDtype) {
  TPUEmbedding layer = make_layer({.dtype = GetParam()});
  const auto copy = std::dynamic_pointer_cast<TPUEmbeddingImpl>(layer->clone());
  const EmbeddingTables tables = copy->embedding_tables();
  EXPECT_TENSOR_EQ(tables.begin()->parameters, table_of(layer));
}

TEST_P(TableDtypeTest, RoundTripsThroughJson) {
  const TableConfig config{
      .name = "items",
      .vocabulary_size = 3,
      .dim = 2,
      .dtype = GetParam(),
      .stochastic_rounding = false};
  const Nest<FeatureConfig> features =
      features_of({{"item", make_table(config)}});
  const auto restored = features_from_json(to_json(features));
  EXPECT_EQ(*restored["item"].table, config);
}

TEST(TableDtypeErrorsTest, RefusesInitialValuesBeyondTheDtype) {
  const TablePtr table = make_table(
      {.name = "t",
       .vocabulary_size = 3,
       .dim = 2,
       .initializer = initializers::Constant{1e5},
       .dtype = at::kHalf});
  EXPECT_VALUE_ERROR(
      layer_of(features_of({{"f", table}})),
      "[table 't'] the initializer must return values in the range of dtype "
      "float16, but returned values beyond it. Use smaller values, or dtype = "
      "kFloat.");
}

TEST(TableDtypeErrorsTest, RefusesOtherDtypesAndTheHost) {
  EXPECT_VALUE_ERROR(
      make_table(
          {.name = "t", .vocabulary_size = 3, .dim = 2, .dtype = at::kDouble}),
      "[TableConfig 't'] dtype must be kFloat, kBFloat16 or kHalf, but got "
      "kDouble.");
  const TablePtr table = make_table(
      {.name = "t", .vocabulary_size = 3, .dim = 2, .dtype = at::kBFloat16});
  EXPECT_VALUE_ERROR(
      layer_of(features_of({{"f", table}}), {}, {.strategy = Strategy::host()}),
      "[table 't'] dtype must be kFloat on Strategy::host() and "
      "Strategy::padded(), but got bfloat16. Optimizers of LibTorch would lose "
      "small steps by rounding. Use kFloat or Strategy::fused().");
}

}  // namespace tessera::test::table_dtype_test
