// SPDX-License-Identifier: Apache-2.0
// Compares the fused strategy with the host and padded strategies, which use only stock
// operators and torch::optim. The numbers agree to float rounding.
#include <torch/optim/adagrad.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::strategies_agree_test {

constexpr int64_t kSpreadRows = 16;  // rows of the feature `spread`
constexpr int kSteps = 25;  // the first and last batch have the same size
constexpr std::array<int64_t, 4> kBatches{16, 32, 1, 8};

// Configs of every kind of feature, with shared tables and all combiners.
Nest<FeatureConfig> all_kinds() {
  const auto users = make_table(
      {.name = "users",
       .vocabulary_size = 50,
       .dim = 5,
       .combiner = Combiner::kMean});
  const auto items = make_table(
      {.name = "items",
       .vocabulary_size = 20,
       .dim = 8,
       .combiner = Combiner::kSqrtn});
  const auto tags = make_table(
      {.name = "tags",
       .vocabulary_size = 9,
       .dim = 33,
       .combiner = Combiner::kSum,
       .initializer = initializers::Uniform{}});
  return {
      {"user", FeatureConfig{.table = users}},
      {"friends", FeatureConfig{.table = users}},
      {"grid", FeatureConfig{.table = items}},
      {"bought", FeatureConfig{.table = items}},
      {"seen",
       Nest<FeatureConfig>::list(
           {FeatureConfig{.table = items, .max_sequence_length = 3},
            FeatureConfig{.table = items, .max_sequence_length = 4}})},
      {"tags", FeatureConfig{.table = tags}},
      {"spread",
       FeatureConfig{
           .table = tags,
           .output_shape = std::vector<int64_t>{kSpreadRows, 2}}},
      {"reshaped",
       FeatureConfig{
           .table = tags, .output_shape = PartialShape{std::nullopt, 2}}},
      {"rank_3", FeatureConfig{.table = items, .max_sequence_length = 2}},
      {"unusual",
       FeatureConfig{.table = tags, .out_of_range = OutOfRange::kZero}}};
}

// A batch with empty rows, duplicates, negative ids, ids out of range, and weights
// of zero and below.
class RandomBatch {
 public:
  explicit RandomBatch(uint32_t seed, int64_t batch = 16)
      : random_(seed), batch_(batch) {
    const at::Tensor user = at::tensor(ids(batch_, 0, 50), at::kLong);
    const Feature bought = sparse(20);
    features = {
        {"user", user},
        {"friends", ragged(0, 50)},
        {"grid", at::tensor(ids(batch_ * 3, 0, 20), at::kInt).view({-1, 3})},
        {"bought", bought},
        {"seen", Features::list({sparse(20), ragged(-1, 20)})},
        {"tags", ragged(-1, 9)},
        {"spread", test::ragged(rows(0, 9, kSpreadRows))},
        {"reshaped", test::ragged(rows(0, 9, 2 * batch_))},
        {"rank_3", to_rank_3(sparse(20))},
        {"unusual", ragged(0, 12)}};
    weights = {
        {"user", std::nullopt},
        {"friends", weights_for(features["friends"])},
        {"grid", std::nullopt},
        {"bought", weights_for(bought)},
        {"seen", Weights::list({std::nullopt, std::nullopt})},
        {"tags", weights_for(features["tags"])},
        {"spread", std::nullopt},
        {"reshaped", weights_for(features["reshaped"])},
        {"rank_3", weights_for(features["rank_3"])},
        {"unusual", weights_for(features["unusual"])}};
  }

  Features features;
  Weights weights;

 private:
  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high - 1)(random_);
  }

  std::vector<int64_t> ids(int64_t count, int64_t low, int64_t high) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(draw(low, high));
    }
    return values;
  }

  Rows rows(int64_t low, int64_t high, int64_t count) {
    Rows rows;
    for (int64_t row = 0; row < count; ++row) {
      rows.push_back(ids(draw(0, 6), low, high));
    }
    return rows;
  }

  RaggedFeature ragged(int64_t low, int64_t high) {
    return test::ragged(rows(low, high, batch_));
  }

  SparseFeature sparse(int64_t vocab) {
    return test::sparse(rows(-1, vocab, batch_), 6);
  }

  // Reshapes a feature [batch, 6] to [batch, 3, 2].
  static SparseFeature to_rank_3(SparseFeature feature) {
    const at::Tensor column = feature.indices.select(1, 1);
    feature.indices = at::stack(
        {feature.indices.select(1, 0),
         column.bitwise_right_shift(1),
         column.remainder(2)},
        1);
    feature.dense_shape =
        at::cat({feature.dense_shape.slice(0, 0, 1), int64s({3, 2})});
    return feature;
  }

  Feature weights_for(const Feature& feature) {
    const auto* ragged = std::get_if<RaggedFeature>(&feature);
    const int64_t count = ragged != nullptr
        ? ragged->values.numel()
        : std::get<SparseFeature>(feature).values.numel();
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(draw(-1, 9)) / 4);
    }
    return at::tensor(values, at::kFloat);
  }

  std::mt19937 random_;
  int64_t batch_;
};

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(TPUEmbedding&)>;

at::Tensor loss_of(const Nest<at::Tensor>& activations) {
  at::Tensor loss = at::zeros({}, at::kFloat);
  float slope = 0.5F;
  for (const at::Tensor& activation : activations.flatten()) {
    loss = loss + (activation - slope).square().mean() * activation.size(-1);
    slope = -slope + 0.1F;
  }
  return loss;
}

void expect_agreement(
    const optim::OptimizerSpec& spec,
    Strategy host_strategy,
    const MakeOptimizer& make_optimizer) {
  TPUEmbedding fused = layer_of(all_kinds(), spec, {.seed = 3});
  TPUEmbedding host = layer_of(
      all_kinds(), {}, {.strategy = std::move(host_strategy), .seed = 3});
  expect_same_tables(host, tables_of(fused));
  const auto initial = tables_of(fused);
  const auto optimizer = make_optimizer(host);

  float first_loss = 0.0F;
  float last_loss = 0.0F;
  for (int step = 0; step < kSteps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const RandomBatch batch(100 + step, kBatches[step % kBatches.size()]);
    const auto fused_out = fused->forward(batch.features, batch.weights);
    const auto host_out = host->forward(batch.features, batch.weights);
    const auto fused_leaves = fused_out.flatten();
    const auto host_leaves = host_out.flatten();
    for (size_t i = 0; i < fused_leaves.size(); ++i) {
      expect_close(fused_leaves[i], host_leaves[i], 2e-5, 2e-6);
    }
    const at::Tensor loss = loss_of(fused_out);
    loss.backward();
    optimizer->zero_grad();
    loss_of(host_out).backward();
    optimizer->step();
    const auto fused_tables = tables_of(fused);
    const auto host_tables = tables_of(host);
    for (size_t i = 0; i < fused_tables.size(); ++i) {
      expect_close(fused_tables[i], host_tables[i], 2e-5, 2e-6);
    }
    if (testing::Test::HasFailure()) {
      return;  // later steps would fail again
    }
    first_loss = step == 0 ? loss.item<float>() : first_loss;
    last_loss = loss.item<float>();
  }
  EXPECT_EQ(fused->out_of_range_count(), host->out_of_range_count());
  EXPECT_GT(fused->out_of_range_count(), 0);
  // The training has changed the tables and lowered the loss.
  EXPECT_LT(last_loss, 0.9F * first_loss);
  for (size_t i = 0; i < initial.size(); ++i) {
    EXPECT_FALSE(at::equal(tables_of(fused)[i], initial[i]));
  }
}

std::unique_ptr<torch::optim::Optimizer> make_sgd(TPUEmbedding& layer) {
  return std::make_unique<torch::optim::SGD>(
      layer->parameters(), torch::optim::SGDOptions(0.1));
}

// LibTorch adds an epsilon outside the root, and the fused strategy adds none.
std::unique_ptr<torch::optim::Optimizer> make_adagrad(TPUEmbedding& layer) {
  return std::make_unique<torch::optim::Adagrad>(
      layer->parameters(),
      torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.25).eps(0));
}

const std::vector<Strategy> kStrategies{
    Strategy::host(),
    Strategy::host({.sparse_gradients = true}),
    Strategy::padded()};

TEST(StrategiesAgreeTest, SgdMatchesTorchOptimSgd) {
  for (const Strategy& strategy : kStrategies) {
    expect_agreement(optim::SGD{.learning_rate = 0.1}, strategy, make_sgd);
  }
}

TEST(StrategiesAgreeTest, AdagradMatchesTorchOptimAdagrad) {
  for (const Strategy& strategy : kStrategies) {
    expect_agreement(
        optim::Adagrad{.learning_rate = 0.1, .initial_accumulator_value = 0.25},
        strategy,
        make_adagrad);
  }
}

TEST(StrategiesAgreeTest, SparseGradientsAreSparse) {
  TPUEmbedding host = layer_of(
      all_kinds(),
      {},
      {.strategy = Strategy::host({.sparse_gradients = true})});
  const RandomBatch batch(1);
  loss_of(host->forward(batch.features, batch.weights)).backward();
  for (const auto& parameter : host->parameters()) {
    EXPECT_EQ(parameter.grad().layout(), at::kSparse);
  }
}

TEST(StrategiesAgreeTest, InitialTablesDependOnTheSeedAlone) {
  const auto tables = [](Strategy strategy, uint64_t seed) {
    return tables_of(layer_of(
        all_kinds(), {}, {.strategy = std::move(strategy), .seed = seed}));
  };
  const auto fused = tables(Strategy::fused(), 7);
  const auto host = tables(Strategy::host(), 7);
  const auto padded = tables(Strategy::padded(), 7);
  const auto other = tables(Strategy::fused(), 8);
  for (size_t i = 0; i < fused.size(); ++i) {
    EXPECT_TENSOR_EQ(fused[i], host[i]);
    EXPECT_TENSOR_EQ(fused[i], padded[i]);
    EXPECT_FALSE(at::equal(fused[i], other[i]));
  }
}

}  // namespace tessera::test::strategies_agree_test
