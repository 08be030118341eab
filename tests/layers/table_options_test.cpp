// SPDX-License-Identifier: Apache-2.0
// Options of tables: simulated quantization, frozen tables, replaced tables,
// weights and output shapes. Also the dense parameters of a model.
#include <tessera/layers/dense_parameters.h>
#include <tessera/serialization/config_json.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::table_options_test {

class TableOptionsTest : public testing::TestWithParam<Strategy> {
 protected:
  // A layer of one feature. Its table learns with a rate of 1.
  static TPUEmbedding layer_of(const FeatureConfig& feature) {
    return TPUEmbedding(TPUEmbeddingOptions{
        .features = feature,
        .optimizer = optim::SGD{.learning_rate = 1.0},
        .strategy = GetParam(),
        .seed = 3});
  }
};

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    TableOptionsTest,
    strategies(),
    strategy_name);

Weights weights_of(const at::Tensor& weights) {
  return std::optional<Feature>(weights);
}

// --- rows of unknown values ---------------------------------------------------

TEST_P(TableOptionsTest, TheFirstRowsMayBeginAsZeros) {
  const auto values_of = [](int64_t zero_rows, at::ScalarType dtype) {
    const TablePtr table = make_table(
        {.name = "t",
         .vocabulary_size = 9,
         .dim = 4,
         .zero_rows = zero_rows,
         .dtype = dtype});
    return layer_of({.table = table})->embedding_tables()["t"].detach().clone();
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (dtype != at::kFloat && GetParam() != Strategy::fused()) {
      continue;  // the others have no tables of 16 bits
    }
    const at::Tensor plain = values_of(0, dtype);
    const at::Tensor values = values_of(2, dtype);
    EXPECT_TRUE(values.slice(0, 0, 2).eq(0).all().item<bool>());
    EXPECT_TENSOR_EQ(values.slice(0, 2), plain.slice(0, 2));
    EXPECT_TRUE(plain.slice(0, 0, 2).ne(0).any(1).all().item<bool>());
  }
}

// --- quantization ------------------------------------------------------------

constexpr QuantizationConfig kBuckets{
    .num_buckets = 5,
    .lower = -1.0,
    .upper = 3.0};

double round_to_bucket(double x) {
  const double step = (kBuckets.upper - kBuckets.lower) /
      static_cast<double>(kBuckets.num_buckets - 1);
  const double clipped = std::min(std::max(x, kBuckets.lower), kBuckets.upper);
  return std::floor((clipped - kBuckets.lower) / step + 0.5) * step +
      kBuckets.lower;
}

TablePtr quantized_table(int64_t dim, Combiner combiner) {
  return make_table(
      {.name = "t",
       .vocabulary_size = 50,
       .dim = dim,
       .combiner = combiner,
       .initializer = initializers::Uniform{-2, 4},
       .quantization = kBuckets});
}

TEST_P(TableOptionsTest, RowsAreRoundedBeforeTheyAreCombined) {
  for (const int64_t dim : {1, 3, 8, 16, 17, 64, 100}) {
    TPUEmbedding layer =
        layer_of({.table = quantized_table(dim, Combiner::kMean)});
    const at::Tensor table = layer->embedding_tables()["t"];
    const at::Tensor before = table.clone();
    const std::vector<int64_t> ids{7, 3, 7};
    const std::vector<float> weights{1, 2, 0.5F};
    const at::Tensor activation =
        layer->forward(ragged({ids, {}}), weights_of(floats({1, 2, 0.5F})))
            .leaf();
    for (int64_t column = 0; column < dim; ++column) {
      double sum = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        sum +=
            weights[i] * round_to_bucket(before[ids[i]][column].item<float>());
      }
      EXPECT_NEAR(activation[0][column].item<float>(), sum / 3.5, 1e-5);
      EXPECT_EQ(activation[1][column].item<float>(), 0);
    }
    EXPECT_TENSOR_EQ(table, before);
    // Gradients ignore the rounding.
    activation.sum().backward();
    if (GetParam().is_fused()) {
      expect_close(before[3] - table[3], at::full({dim}, 2 / 3.5));
      expect_close(before[7] - table[7], at::full({dim}, 1.5 / 3.5));
    } else {
      const at::Tensor gradient = layer->parameters()[0].grad();
      expect_close(gradient[3], at::full({dim}, 2 / 3.5));
      expect_close(gradient[7], at::full({dim}, 1.5 / 3.5));
    }
  }
}

TEST_P(TableOptionsTest, RoundingKeepsNaN) {
  TPUEmbedding layer = layer_of({.table = quantized_table(20, Combiner::kSum)});
  at::Tensor rows = at::zeros({50, 20});
  rows[3].fill_(NAN);
  rows[4].fill_(INFINITY);
  layer->update_embedding_table("t", rows);
  const at::NoGradGuard no_grad;
  const at::Tensor activation = layer->forward(int64s({3, 4})).leaf();
  EXPECT_TRUE(activation[0].isnan().all().item<bool>());
  expect_close(activation[1], at::full({20}, 3.0F));
}

// Row 0 is infinite, and no valid id looks it up.
TEST_P(TableOptionsTest, IdsOutOfRangeReadNoRow) {
  TPUEmbedding layer = layer_of(
      {.table = numbered_table("t", 4, 2), .out_of_range = OutOfRange::kZero});
  at::Tensor rows = at::ones({4, 2});
  rows[0].fill_(INFINITY);
  layer->update_embedding_table("t", rows);
  const at::Tensor weights = at::ones({3}).requires_grad_();
  layer->forward(ragged({{1, 99}, {2}, {}}), weights_of(weights))
      .leaf()
      .sum()
      .backward();
  EXPECT_TENSOR_EQ(weights.grad(), floats({2, 0, 2}));
}

TEST_P(TableOptionsTest, WeightsSeeRoundedRows) {
  TPUEmbedding layer = layer_of({.table = quantized_table(4, Combiner::kSum)});
  const at::Tensor weights = floats({1, 2}).requires_grad_();
  const at::Tensor table = layer->embedding_tables()["t"];
  if (GetParam().is_fused()) {
    layer->virtual_variable().requires_grad_(false);
  }
  layer->forward(ragged({{5, 9}}), weights_of(weights)).leaf().sum().backward();
  for (const auto& [position, id] : {std::pair{0, 5}, std::pair{1, 9}}) {
    double sum = 0;
    for (int64_t column = 0; column < 4; ++column) {
      sum += round_to_bucket(table[id][column].item<float>());
    }
    EXPECT_NEAR(weights.grad()[position].item<float>(), sum, 1e-5);
  }
}

TEST(QuantizationConfigTest, RefusesUnusableValues) {
  const auto make = [](QuantizationConfig config) {
    make_table(
        {.name = "t", .vocabulary_size = 1, .dim = 1, .quantization = config});
  };
  expect_refusals<QuantizationConfig>(
      {{{.num_buckets = 0, .lower = 0, .upper = 1},
        "[TableConfig 't'] quantization: num_buckets must be >= 2, but got 0"},
       {{.num_buckets = 1, .lower = 0, .upper = 1},
        "num_buckets must be >= 2, but got 1"},
       {{.num_buckets = 2, .lower = 1, .upper = 1}, "lower < upper"},
       {{.num_buckets = 2, .lower = 0, .upper = NAN}, "must be finite"},
       {{.num_buckets = 4, .lower = -1e39, .upper = 1e37},
        "must be finite in float32"},
       {{.num_buckets = int64_t{1} << 62, .lower = 0, .upper = 1e-38},
        "must be a positive float32"}},
      [&](const QuantizationConfig& x) { make(x); });
}

TEST(QuantizationConfigTest, IsPartOfTheJson) {
  const TableConfig config{
      .name = "t",
      .vocabulary_size = 3,
      .dim = 1,
      .quantization = kBuckets,
      .trainable = false};
  const Json json = to_json(config);
  EXPECT_EQ(
      json["quantization"].dump(),
      R"({"num_buckets":5,"lower":-1.0,"upper":3.0})");
  EXPECT_EQ(json["trainable"], false);
  EXPECT_EQ(table_from_json(json), config);
  EXPECT_TRUE(to_json(TableConfig{}).at("quantization").is_null());
}

// --- frozen tables -----------------------------------------------------------

TPUEmbeddingOptions half_frozen(Strategy strategy, Apply apply) {
  TableConfig frozen{
      .name = "frozen",
      .vocabulary_size = 4,
      .dim = 2,
      .combiner = Combiner::kSum,
      .optimizer = optim::Adam{.learning_rate = 0.5, .lazy_adam = false},
      .trainable = false};
  TableConfig trained = frozen;
  trained.name = "trained";
  trained.trainable = true;
  return {
      .features =
          features_of({{"a", make_table(frozen)}, {"b", make_table(trained)}}),
      .strategy = std::move(strategy),
      .apply = apply};
}

TEST(FrozenTableTest, IsNeverUpdated) {
  for (const Apply apply : {Apply::kInBackward, Apply::kOnStep}) {
    for (const Strategy& strategy :
         {Strategy::fused(), Strategy::host(), Strategy::padded()}) {
      if (apply == Apply::kOnStep && !strategy.is_fused()) {
        continue;
      }
      SCOPED_TRACE(strategy.name());
      TPUEmbedding layer(half_frozen(strategy, apply));
      const auto before = tables_of(layer);
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (!strategy.is_fused()) {
        optimizer = make_optimizer(layer);
      } else if (apply == Apply::kOnStep) {
        optimizer = std::make_unique<Combined>(
            std::make_unique<torch::optim::SGD>(layer->parameters(), 1.0),
            std::vector<TPUEmbedding>{layer});
      }
      for (int step = 0; step < 3; ++step) {
        const auto activations =
            layer->forward({{"a", int64s({0, 1})}, {"b", int64s({0, 1})}});
        (activations["a"].sum() + activations["b"].sum()).backward();
        if (optimizer != nullptr) {
          optimizer->step();
        }
      }
      const auto after = tables_of(layer);
      EXPECT_TENSOR_EQ(after[0], before[0]);
      EXPECT_FALSE(at::equal(after[1], before[1]));
      EXPECT_EQ(layer->iterations(), 3);
    }
  }
}

TEST(FrozenTableTest, HasNoSlotsAndNoGradient) {
  TPUEmbedding fused(half_frozen(Strategy::fused(), Apply::kInBackward));
  EXPECT_CONTAINS(fused->summary(), "momenta, velocities");
  EXPECT_CONTAINS(fused->summary(), "frozen   4     2    float32  sum       -");
  TPUEmbedding host(half_frozen(Strategy::host(), Apply::kInBackward));
  EXPECT_FALSE(host->parameters()[0].requires_grad());
  EXPECT_TRUE(host->parameters()[1].requires_grad());
}

TEST(FrozenTableTest, IsSavedAndLoaded) {
  TPUEmbedding layer(half_frozen(Strategy::fused(), Apply::kInBackward));
  auto other_options = half_frozen(Strategy::fused(), Apply::kInBackward);
  other_options.seed = 5;
  TPUEmbedding other(other_options);
  copy_by_archive(layer, other);
  expect_same_tables(other, tables_of(layer));
}

// --- replaced tables ---------------------------------------------------------

TEST_P(TableOptionsTest, ATableStartsFromAPretrainedMatrix) {
  TPUEmbedding layer = layer_of({.table = numbered_table("t", 4, 2)});
  const at::Tensor pretrained = at::randn({4, 2});
  layer->update_embedding_table("t", pretrained);
  EXPECT_TENSOR_EQ(layer->read_rows("t", 0, 4), pretrained);
  EXPECT_TENSOR_EQ(layer->forward(int64s({3})).leaf()[0], pretrained[3]);
  const at::Tensor rows = layer->read_rows("t", 1, 3);
  EXPECT_FALSE(rows.requires_grad());
  EXPECT_FALSE(rows.is_alias_of(layer->embedding_tables()["t"]));
  EXPECT_VALUE_ERROR(
      layer->update_embedding_table("u", pretrained),
      "[update_embedding_table] no table 'u'. Known: t.");
  EXPECT_VALUE_ERROR(
      layer->update_embedding_table("t", at::randn({4, 3})),
      "table 't': expected shape [4, 2], but got [4, 3]");
  EXPECT_INDEX_ERROR(layer->read_rows("t", -1, 3), "but got the range [-1, 3)");
}

// A normal distribution of stddev 1 / sqrt(dim) that is truncated at twice its
// stddev has 0.88 of this stddev.
TEST(InitialTableTest, IsTruncatedNormalByDefault) {
  constexpr int64_t kWidth = 16;
  TPUEmbedding layer = test::layer_of(
      {.name = "t", .vocabulary_size = 20000, .dim = kWidth}, optim::SGD{});
  const at::Tensor rows = layer->read_rows("t", 0, 20000);
  const double stddev = 1.0 / std::sqrt(kWidth);
  EXPECT_LE(rows.abs().max().item<double>(), 2 * stddev * (1 + 1e-6));
  EXPECT_GT(rows.abs().max().item<double>(), 1.99 * stddev);
  EXPECT_NEAR(rows.mean().item<double>(), 0, 0.005 * stddev);
  EXPECT_NEAR(rows.std().item<double>(), 0.8796 * stddev, 0.005 * stddev);
}

TEST(UpdateEmbeddingTableTest, RoundsToTheTablesDtype) {
  TPUEmbedding layer = test::layer_of(
      {.name = "t", .vocabulary_size = 1, .dim = 1, .dtype = at::kBFloat16},
      optim::SGD{});
  layer->update_embedding_table("t", at::full({1, 1}, 1.001F));
  EXPECT_EQ(layer->read_rows("t", 0, 1).item<float>(), 1.0F);
  EXPECT_EQ(layer->read_rows("t", 0, 1).scalar_type(), at::kFloat);
}

// --- weights -----------------------------------------------------------------

TEST_P(TableOptionsTest, WeightsOfOneGiveTheSameAsNoWeights) {
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    const TablePtr table =
        make_table({.vocabulary_size = 9, .dim = 5, .combiner = combiner});
    TPUEmbedding layer = layer_of({.table = table});
    const Features features = ragged({{1, 2, 2}, {}, {8}});
    expect_close(
        layer->forward(features, weights_of(at::ones({4}))).leaf(),
        layer->forward(features).leaf());
  }
}

// --- shapes ------------------------------------------------------------------

TEST_P(TableOptionsTest, BuildFixesShapes) {
  const auto make = [&] {
    return TPUEmbedding(TPUEmbeddingOptions{
        .features = features_of({{"f", numbered_table("t", 9, 2)}}),
        .strategy = GetParam()});
  };
  TPUEmbedding unbuilt = make();
  unbuilt->forward({{"f", at::zeros({2, 3}, at::kLong)}});
  unbuilt->forward({{"f", at::zeros({5, 4}, at::kLong)}});
  TPUEmbedding by_size = make();
  by_size->build(4);
  EXPECT_VALUE_ERROR(by_size->forward({{"f", int64s({1})}}), "is set to [4]");
  TPUEmbedding by_shape = make();
  by_shape->build({{"f", PartialShape{2, 4, std::nullopt}}});
  EXPECT_EQ(
      by_shape->forward({{"f", ragged(Rows(8, {1}))}})["f"].sizes(),
      at::IntArrayRef({2, 4, 2}));
}

// --- dense parameters --------------------------------------------------------

TEST(DenseParametersTest, LeavesOutVirtualVariablesAndTables) {
  for (const Strategy& strategy : {Strategy::fused(), Strategy::host()}) {
    struct ModelImpl : torch::nn::Module {
      explicit ModelImpl(const Strategy& strategy) {
        linear = register_module("linear", torch::nn::Linear(2, 1));
        embedding = register_module(
            "embedding",
            TPUEmbedding(TPUEmbeddingOptions{
                .features = FeatureConfig{.table = numbered_table("t", 3, 2)},
                .optimizer = optim::SGD{.learning_rate = 0.1},
                .strategy = strategy}));
        bias = register_parameter("bias", at::zeros({1}));
      }
      torch::nn::Linear linear{nullptr};
      TPUEmbedding embedding{nullptr};
      at::Tensor bias;
    };
    ModelImpl model(strategy);
    const auto parameters = dense_parameters(model);
    ASSERT_EQ(parameters.size(), 3);
    EXPECT_TRUE(parameters[0].is_same(model.bias));
    EXPECT_TRUE(parameters[1].is_same(model.linear->weight));
    EXPECT_TRUE(parameters[2].is_same(model.linear->bias));
    EXPECT_TRUE(dense_parameters(*model.embedding).empty());

    torch::optim::Adam dense(parameters, 1e-3);
    const auto before = tables_of(model.embedding);
    model.linear->forward(model.embedding->forward(int64s({0, 1})).leaf())
        .sum()
        .backward();
    dense.step();
    EXPECT_EQ(
        at::equal(before[0], tables_of(model.embedding)[0]),
        !strategy.is_fused());
  }
}

}  // namespace tessera::test::table_options_test
