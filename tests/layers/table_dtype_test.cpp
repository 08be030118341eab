// SPDX-License-Identifier: Apache-2.0
// Tables stored in 16 or 8 bits, through the public layer.
#include <tessera/engine/serving_lookup.h>
#include <tessera/serialization/config_json.h>

#include "src/tables/table_state.h"
#include "tests/layers/layer_test_util.h"
#include "tests/temporary_folder.h"

namespace tessera::test::table_dtype_test {

constexpr int64_t kRows = 500;
constexpr int64_t kDim = 24;

struct Setting {
  at::ScalarType dtype = at::kBFloat16;
  optim::OptimizerSpec optimizer = optim::Adagrad{.learning_rate = 0.05};
  bool stochastic_rounding = true;
  uint64_t seed = 1;
  at::ScalarType slot_dtype = at::kFloat;
  std::optional<DynamicKeys> keys = {};
};

TPUEmbedding make_layer(const Setting& setting) {
  const TablePtr table = make_table(
      {.name = "items",
       .vocabulary_size = setting.keys ? 0 : kRows,
       .dim = kDim,
       .combiner = Combiner::kMean,
       .dtype = setting.dtype,
       .slot_dtype = setting.slot_dtype,
       .stochastic_rounding = setting.stochastic_rounding,
       .keys = setting.keys});
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

/// The dtype of the tensors that embedding_tables() returns.
at::ScalarType returned_dtype(at::ScalarType dtype) {
  return dtype == at::kChar ? at::kFloat : dtype;
}

void set_table(TPUEmbedding& layer, const at::Tensor& values) {
  layer->update_embedding_table("items", values);
}

/// The float32 numbers of a layer's table after a load into a table of another dtype.
at::Tensor converted(
    const TPUEmbedding& layer,
    at::ScalarType from,
    at::ScalarType to) {
  const at::Tensor rows = table_of(layer).to(at::kFloat);
  return from == to ? rows : float_rows(rows_of_dtype(rows, to));
}

class TableDtypeTest : public testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    TableDtypeTest,
    testing::Values(at::kBFloat16, at::kHalf, at::kChar),
    [](const auto& info) { return to_string(info.param); });

TEST_P(TableDtypeTest, StartsAsTheFloat32TableRounded) {
  const at::Tensor halves = table_of(make_layer({.dtype = GetParam()}));
  const at::Tensor floats = table_of(make_layer({.dtype = at::kFloat}));
  ASSERT_EQ(halves.scalar_type(), returned_dtype(GetParam()));
  EXPECT_TENSOR_EQ(
      halves,
      float_rows(rows_of_dtype(floats, GetParam())).to(halves.scalar_type()));
}

TEST_P(TableDtypeTest, LooksUpInFloat32) {
  TPUEmbedding layer = make_layer({.dtype = GetParam()});
  TPUEmbedding reference = make_layer({.dtype = at::kFloat});
  set_table(reference, table_of(layer));
  const Features batch = random_batch(3);
  const at::Tensor actual = layer->forward(batch)["item"];
  EXPECT_EQ(actual.scalar_type(), at::kFloat);
  const at::Tensor expected = reference->forward(batch)["item"];
  if (GetParam() == at::kChar) {  // multiplies sums by scales
    expect_close(actual, expected, 1e-6, 1e-5);
  } else {
    EXPECT_TENSOR_EQ(actual, expected);
  }
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
    EXPECT_LT(error, (GetParam() == at::kChar ? 0.25 : 0.1) * moved);
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
  const auto change_of_mean = [&](bool stochastic, uint64_t seed) {
    TPUEmbedding layer = make_layer(
        {.dtype = GetParam(),
         .optimizer = optim::SGD{.learning_rate = 1e-4},
         .stochastic_rounding = stochastic,
         .seed = seed});
    set_table(layer, at::ones({kRows, kDim}));
    const auto mean = [&] {
      return table_of(layer).to(at::kDouble).mean().item<double>();
    };
    const double before = mean();
    for (int step = 0; step < 100; ++step) {
      const at::Tensor activations = layer->forward(all_rows)["item"];
      torch::autograd::backward({activations}, {at::ones_like(activations)});
    }
    return mean() - before;
  };
  // The rounding errors of 12000 numbers are independent and at most 0.02 each, so
  // the mean is off by less than 1e-3.
  EXPECT_NEAR(change_of_mean(true, 1), -0.01, 1e-3);
  EXPECT_NE(change_of_mean(true, 1), change_of_mean(true, 2));
  EXPECT_EQ(change_of_mean(false, 1), 0.0);
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

TEST_P(TableDtypeTest, ConvertsRowsOfAnotherDtypeIfAsked) {
  const TemporaryFolder folder;
  for (const at::ScalarType other : {at::kFloat, at::kBFloat16, at::kChar}) {
    TPUEmbedding saved = make_layer({.dtype = other, .seed = 7});
    train(saved, 3);
    std::stringstream archive;
    torch::save(saved, archive);
    saved->save_checkpoint(folder / to_string(other));
    const at::Tensor expected = converted(saved, other, GetParam());
    const LoadOptions options{.convert_rows = true};
    TPUEmbedding from_archive = make_layer({.dtype = GetParam()});
    torch::serialize::InputArchive input;
    input.load_from(archive);
    from_archive->load(input, options);
    TPUEmbedding from_checkpoint = make_layer({.dtype = GetParam()});
    from_checkpoint->load_checkpoint(folder / to_string(other), options);
    for (const TPUEmbedding& loaded : {from_archive, from_checkpoint}) {
      EXPECT_TENSOR_EQ(table_of(loaded).to(at::kFloat), expected);
    }
    // Slots and the counter are loaded, too.
    if (other == GetParam()) {
      train(saved, 2, 3);
      train(from_checkpoint, 2, 3);
      EXPECT_TENSOR_EQ(table_of(from_checkpoint), table_of(saved));
    }
  }
}

TEST_P(TableDtypeTest, ConvertsRowsOfKeysIfAsked) {
  const TemporaryFolder folder;
  const auto make = [](at::ScalarType dtype) {
    return layer_of(
        features_of(
            {{"item",
              make_table(
                  {.name = "items",
                   .dim = kDim,
                   .dtype = dtype,
                   .keys = DynamicKeys{.capacity = 2 * kRows}})}}),
        optim::Adagrad{.learning_rate = 0.05});
  };
  for (const at::ScalarType other : {at::kFloat, at::kChar}) {
    TPUEmbedding saved = make(other);
    train(saved, 3);
    std::stringstream archive;
    torch::save(saved, archive);
    saved->save_checkpoint(folder / to_string(other));
    EXPECT_VALUE_ERROR(
        make(at::kHalf)->load_checkpoint(folder / to_string(other)),
        "parameters is float16");
    const at::Tensor expected = converted(saved, other, GetParam());
    const LoadOptions options{.convert_rows = true};
    TPUEmbedding from_archive = make(GetParam());
    torch::serialize::InputArchive input;
    input.load_from(archive);
    from_archive->load(input, options);
    TPUEmbedding from_checkpoint = make(GetParam());
    from_checkpoint->load_checkpoint(folder / to_string(other), options);
    for (const TPUEmbedding& loaded : {from_archive, from_checkpoint}) {
      EXPECT_TENSOR_EQ(table_of(loaded).to(at::kFloat), expected);
    }
  }
}

// Increments hold only the rows that have changed.
TEST_P(TableDtypeTest, IncrementsRestoreEveryBit) {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  TPUEmbedding layer = make_layer({.dtype = GetParam()});
  for (int step = 0; step < 4; ++step) {
    train(layer, 1, step);
    layer->save_checkpoint(run, {.keep_last = 9, .full_every = 9});
  }
  TPUEmbedding resumed = make_layer({.dtype = GetParam(), .seed = 5});
  resumed->load_checkpoint(run);
  EXPECT_TENSOR_EQ(table_of(resumed), table_of(layer));
  train(layer, 2, 4);
  train(resumed, 2, 4);
  EXPECT_TENSOR_EQ(table_of(resumed), table_of(layer));
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
      "[TableConfig 't'] dtype must be kFloat, kBFloat16, kHalf or kChar, but "
      "got kDouble.");
  for (const at::ScalarType dtype : {at::kBFloat16, at::kChar}) {
    const TablePtr table = make_table(
        {.name = "t", .vocabulary_size = 3, .dim = 2, .dtype = dtype});
    EXPECT_VALUE_ERROR(
        layer_of(
            features_of({{"f", table}}), {}, {.strategy = Strategy::host()}),
        "[table 't'] dtype must be kFloat on Strategy::host() and "
        "Strategy::padded(), but got " +
            to_string(dtype) +
            ". Optimizers of LibTorch would lose small steps by rounding. Use "
            "kFloat or Strategy::fused().");
  }
}

// A row that no batch has keeps its bytes, and so does a column without a gradient.
TEST(Int8TableTest, OnlyTouchedNumbersChange) {
  TPUEmbedding layer = make_layer({.dtype = at::kChar});
  const at::Tensor before = table_of(layer);
  const at::Tensor ids = at::arange(0, kRows, 2, at::kLong);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor activations = layer->forward({{"item", ids}})["item"];
    at::Tensor gradient = at::zeros_like(activations);
    gradient.select(1, 3).fill_(0.01);
    torch::autograd::backward({activations}, {gradient});
  }
  const at::Tensor after = table_of(layer);
  const at::Tensor has_changed = after != before;
  EXPECT_FALSE(has_changed.slice(0, 1, kRows, 2).any().item<bool>());
  // A row whose scale changes is rounded again. Few steps change few scales.
  const at::Tensor rows = has_changed.slice(0, 0, kRows, 2);
  EXPECT_GT(rows.select(1, 3).to(at::kDouble).mean().item<double>(), 0.8);
  const double others =
      rows.to(at::kDouble).sum(1).gt(1.5).to(at::kDouble).mean().item<double>();
  EXPECT_LT(others, 0.2);
}

TEST(Int8TableTest, TakesValuesInAnyForm) {
  TPUEmbedding layer = make_layer({.dtype = at::kChar});
  const at::Tensor values = at::randn({kRows, kDim});
  set_table(layer, values);
  const at::Tensor expected = table_of(layer);
  for (const at::Tensor& same :
       {at::_neg_view(-values),
        values.to(at::kDouble),
        values.t().contiguous().t()}) {
    set_table(layer, at::zeros({kRows, kDim}));
    set_table(layer, same);
    EXPECT_TENSOR_EQ(table_of(layer), expected);
  }
}

TEST(Int8TableTest, ServesTheRowsOfTheLayerAndOfCopies) {
  TPUEmbedding layer = make_layer({.dtype = at::kChar});
  const Features batch = random_batch(1);
  const at::NoGradGuard no_grad;
  const at::Tensor expected = layer->forward(batch)["item"];
  const EmbeddingTables tables = layer->embedding_tables();
  const Nest<FeatureConfig>& features = layer->options().features;
  EXPECT_TENSOR_EQ(
      layer->embedding_lookup(batch, {}, features)["item"], expected);
  expect_close(
      serving_embedding_lookup(batch, {}, tables, features)["item"],
      expected,
      1e-6,
      1e-5);
}

/// Tables of each dtype whose slots have 16 bits.
class SlotDtypeTest : public testing::TestWithParam<at::ScalarType> {
 public:
  static Setting setting(std::optional<DynamicKeys> keys = {}) {
    return {
        .dtype = GetParam(),
        .optimizer = optim::Adam{.learning_rate = 0.01},
        .slot_dtype = at::kBFloat16,
        .keys = keys};
  }

  static constexpr DynamicKeys kKeys{.capacity = 2 * kRows};
};

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    SlotDtypeTest,
    testing::Values(at::kFloat, at::kBFloat16, at::kChar),
    [](const auto& info) { return to_string(info.param); });

TEST_P(SlotDtypeTest, TrainsCloseToFloat32Slots) {
  Setting setting = SlotDtypeTest::setting();
  TPUEmbedding layer = make_layer(setting);
  setting.slot_dtype = at::kFloat;
  TPUEmbedding reference = make_layer(setting);
  const at::Tensor start = table_of(reference).to(at::kFloat);
  train(layer, 20);
  train(reference, 20);
  const at::Tensor expected = table_of(reference).to(at::kFloat);
  const auto moved = (expected - start).norm().item<double>();
  const auto error =
      (table_of(layer).to(at::kFloat) - expected).norm().item<double>();
  EXPECT_GT(moved, 1.0);
  EXPECT_GT(error, 0.0);
  EXPECT_LT(error, (GetParam() == at::kChar ? 0.2 : 0.02) * moved);
}

// The accumulators grow by far less than half a unit in the last place.
TEST_P(SlotDtypeTest, SmallGrowthCountsOnAverage) {
  Setting setting = SlotDtypeTest::setting();
  setting.optimizer =
      optim::Adagrad{.learning_rate = 0.1, .initial_accumulator_value = 1.0};
  TPUEmbedding layer = make_layer(setting);
  const Features all_rows{{"item", at::arange(kRows, at::kLong)}};
  const auto step = [&](double gradient) {
    const at::Tensor activations = layer->forward(all_rows)["item"];
    torch::autograd::backward(
        {activations}, {at::full_like(activations, gradient)});
  };
  for (int i = 0; i < 1000; ++i) {
    step(0.01);  // each adds 1e-4, and bfloat16 steps by 1/128 at 1
  }
  set_table(layer, at::zeros({kRows, kDim}));
  step(1.0);
  const auto mean = table_of(layer).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(mean, -0.1 / std::sqrt(1.0 + 0.1 + 1.0), 2e-4);
}

TEST_P(SlotDtypeTest, SameSeedSameBitsForAnyNumberOfThreads) {
  for (const bool has_keys : {false, true}) {
    std::vector<at::Tensor> tables;
    for (const int count : {1, 2, 4}) {
      const Threads threads(count);
      TPUEmbedding layer =
          make_layer(setting(has_keys ? std::optional(kKeys) : std::nullopt));
      train(layer, 3);
      tables.push_back(table_of(layer));
    }
    EXPECT_TENSOR_EQ(tables[0], tables[1]);
    EXPECT_TENSOR_EQ(tables[0], tables[2]);
  }
}

TEST_P(SlotDtypeTest, ContinuesBitForBitFromFiles) {
  const TemporaryFolder folder;
  for (const bool has_keys : {false, true}) {
    const Setting setting =
        SlotDtypeTest::setting(has_keys ? std::optional(kKeys) : std::nullopt);
    const std::string run = folder / (has_keys ? "keys" : "rows");
    TPUEmbedding whole = make_layer(setting);
    for (int step = 0; step < 4; ++step) {
      train(whole, 1, step);
      whole->save_checkpoint(run, {.keep_last = 9, .full_every = 9});
    }
    TPUEmbedding from_increments = make_layer(setting);
    from_increments->load_checkpoint(run);
    TPUEmbedding from_archive = make_layer(setting);
    copy_by_archive(whole, from_archive);
    const auto copy =
        std::dynamic_pointer_cast<TPUEmbeddingImpl>(whole->clone());
    train(whole, 3, 4);
    for (TPUEmbedding resumed :
         {from_increments, from_archive, TPUEmbedding(copy)}) {
      train(resumed, 3, 4);
      EXPECT_TENSOR_EQ(table_of(whole), table_of(resumed));
    }
  }
}

TEST_P(SlotDtypeTest, ConvertsSlotsOfAnotherDtypeIfAsked) {
  const TemporaryFolder folder;
  for (const bool has_keys : {false, true}) {
    Setting narrow = setting(has_keys ? std::optional(kKeys) : std::nullopt);
    Setting wide = narrow;
    wide.slot_dtype = at::kFloat;
    for (const auto& [from, to] : {std::pair(wide, narrow), {narrow, wide}}) {
      const std::string run =
          folder / (to_string(from.slot_dtype) + (has_keys ? "keys" : "rows"));
      TPUEmbedding saved = make_layer(from);
      train(saved, 3);
      saved->save_checkpoint(run);
      TPUEmbedding loaded = make_layer(to);
      EXPECT_VALUE_ERROR(
          loaded->load_checkpoint(run),
          "slot momenta is " + to_string(to.slot_dtype));
      loaded->load_checkpoint(run, {.convert_rows = true});
      std::stringstream archive;
      torch::save(saved, archive);
      torch::serialize::InputArchive input;
      input.load_from(archive);
      TPUEmbedding from_archive = make_layer(to);
      from_archive->load(input, {.convert_rows = true});
      EXPECT_TENSOR_EQ(table_of(loaded), table_of(saved));
      train(loaded, 1, 3);
      train(from_archive, 1, 3);
      train(saved, 1, 3);
      EXPECT_TENSOR_EQ(table_of(loaded), table_of(from_archive));
      const auto error =
          (table_of(loaded) - table_of(saved)).abs().max().item<double>();
      EXPECT_LT(error, GetParam() == at::kChar ? 0.02 : 2e-3);
    }
  }
}

TEST_P(SlotDtypeTest, RoundTripsThroughJson) {
  TableConfig config{.name = "items", .vocabulary_size = 3, .dim = 2};
  EXPECT_FALSE(to_json(config).contains("slot_dtype"));
  config.dtype = GetParam();
  config.slot_dtype = at::kBFloat16;
  EXPECT_EQ(table_from_json(to_json(config)), config);
}

// The rows that no batch has begin at the rounded value, and have not grown.
TEST(SlotDtypeSummaryTest, RowsWithoutUpdatesDoNotCountAsTouched) {
  const TablePtr table = make_table(
      {.name = "items",
       .vocabulary_size = 40 * kRows,
       .dim = kDim,
       .slot_dtype = at::kBFloat16});
  TPUEmbedding layer = layer_of(
      features_of({{"item", table}}),
      optim::Adagrad{.learning_rate = 0.1, .initial_accumulator_value = 0.1});
  train(layer, 120);
  EXPECT_EQ(layer->summary().find("hardly move"), std::string::npos)
      << layer->summary();
}

TEST(SlotDtypeErrorsTest, RefusesWhatCannotHaveNarrowSlots) {
  EXPECT_VALUE_ERROR(
      make_table(
          {.name = "t",
           .vocabulary_size = 3,
           .dim = 2,
           .slot_dtype = at::kHalf}),
      "[TableConfig 't'] slot_dtype must be kFloat or kBFloat16, but got "
      "kHalf.");
  const TablePtr table = make_table(
      {.name = "t",
       .vocabulary_size = 3,
       .dim = 2,
       .slot_dtype = at::kBFloat16});
  for (const Strategy& strategy : {Strategy::host(), Strategy::padded()}) {
    EXPECT_VALUE_ERROR(
        layer_of(
            features_of({{"f", table}}), optim::Adam{}, {.strategy = strategy}),
        "[table 't'] slot_dtype must be kFloat on Strategy::host() and "
        "Strategy::padded()");
  }
  const optim::CustomOptimizer custom{
      .rule = optim::CustomRule("stay", [](optim::CustomRows& /*rows*/) {})};
  const optim::Adam created{
      .slot_creation =
          optim::SlotCreation("zeros", [](const optim::SlotRequest& slot) {
            return at::zeros(slot.shape, at::kFloat);
          })};
  for (const optim::OptimizerSpec& optimizer :
       std::vector<optim::OptimizerSpec>{custom, created}) {
    EXPECT_VALUE_ERROR(
        layer_of(features_of({{"f", table}}), optimizer),
        "[table 't'] slot_dtype must be kFloat with a CustomOptimizer or "
        "slot_creation");
  }
}

}  // namespace tessera::test::table_dtype_test
