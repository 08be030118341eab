// SPDX-License-Identifier: Apache-2.0
// Gradients of rows and of per-id weights, on both strategies, against central
// differences of a lookup written out here in double precision.
#include <tessera/layers/tpu_embedding.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/layers/layer_test_util.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace {

constexpr int64_t kVocab = 7;
constexpr int64_t kLength = 3;  // of sequences and of grids

enum class Kind {
  kDense,
  kDenseGrid,
  kSparse,
  kSparseRank3,
  kSparseSequence,
  kRagged,
  kRaggedSequence
};

struct KindName {
  Kind kind;
  const char* name;
};

void PrintTo(const KindName& kind, std::ostream* stream) {
  *stream << kind.name;
}

bool is_dense(Kind kind) {
  return kind == Kind::kDense || kind == Kind::kDenseGrid;
}
bool is_sequence(Kind kind) {
  return kind == Kind::kSparseSequence || kind == Kind::kRaggedSequence;
}

// One value of the batch: the bag of the activation that it goes to, or -1.
struct Value {
  int64_t id = 0;
  int64_t bag = 0;
};

struct Sample {
  Feature feature = at::Tensor();
  std::vector<Value> values = {};
  std::vector<int64_t> batch_shape = {};
};

Sample make_sample(Kind kind) {
  std::mt19937 random(7);
  const auto draw_id = [&] { return static_cast<int64_t>(random() % kVocab); };
  if (is_dense(kind)) {
    const std::vector<int64_t> shape = kind == Kind::kDense
        ? std::vector<int64_t>{5}
        : std::vector<int64_t>{2, kLength};
    const at::Tensor ids = at::randint(kVocab, shape, at::kLong);
    Sample sample{ids, {}, shape};
    for (int64_t i = 0; i < ids.numel(); ++i) {
      sample.values.push_back({ids.data_ptr<int64_t>()[i], i});
    }
    return sample;
  }
  // Empty bags, one id, duplicates, more than a sequence is long.
  const std::vector<int64_t> lengths{2, 0, 1, 5, 0, 4};
  const auto bags = static_cast<int64_t>(lengths.size());
  Sample sample{.batch_shape = {bags}};
  test::Rows rows(lengths.size());
  std::vector<int64_t> indices;
  for (int64_t bag = 0; bag < bags; ++bag) {
    for (int64_t i = 0; i < lengths[bag]; ++i) {
      const int64_t id = bag == 3 ? 2 + i % 2 : draw_id();
      rows[bag].push_back(id);
      const int64_t position =
          is_sequence(kind) ? (i < kLength ? bag * kLength + i : -1) : bag;
      sample.values.push_back({id, position});
      indices.insert(indices.end(), {bag / 3, bag % 3, i});
    }
  }
  if (is_sequence(kind)) {
    sample.batch_shape.push_back(kLength);
  }
  if (kind == Kind::kRagged || kind == Kind::kRaggedSequence) {
    sample.feature = test::ragged(rows);
  } else if (kind == Kind::kSparseRank3) {
    sample.batch_shape = {2, 3};
    sample.feature = SparseFeature{
        at::tensor(indices, at::kLong).view({-1, 3}),
        test::ragged(rows).values,
        test::int64s({2, 3, 5})};
  } else {
    sample.feature = test::sparse(rows, 5);
  }
  return sample;
}

// sum(upstream * activation) + sum(activation^2) / 2, written out.
double reference_loss(
    const Sample& sample,
    Combiner combiner,
    int64_t dim,
    const std::vector<double>& table,
    const std::vector<double>& weights,
    const std::vector<double>& upstream) {
  const size_t bags = upstream.size() / dim;
  std::vector<double> sums(upstream.size());
  std::vector<double> totals(bags);
  for (size_t i = 0; i < sample.values.size(); ++i) {
    const auto [id, bag] = sample.values[i];
    if (bag < 0) {
      continue;
    }
    for (int64_t column = 0; column < dim; ++column) {
      sums[bag * dim + column] += weights[i] * table[id * dim + column];
    }
    totals[bag] +=
        combiner == Combiner::kSqrtn ? weights[i] * weights[i] : weights[i];
  }
  double loss = 0.0;
  for (size_t bag = 0; bag < bags; ++bag) {
    double scale = 1.0;
    if (combiner == Combiner::kMean) {
      scale = totals[bag] == 0.0 ? 0.0 : 1.0 / totals[bag];
    } else if (combiner == Combiner::kSqrtn) {
      scale = totals[bag] == 0.0 ? 0.0 : 1.0 / std::sqrt(totals[bag]);
    }
    for (int64_t column = 0; column < dim; ++column) {
      const double value = scale * sums[bag * dim + column];
      loss += upstream[bag * dim + column] * value + 0.5 * value * value;
    }
  }
  return loss;
}

at::Tensor central_differences(
    std::vector<double>& at,
    const std::function<double()>& loss) {
  constexpr double kEpsilon = 1e-5;
  std::vector<double> gradient;
  for (double& value : at) {
    const double middle = value;
    value = middle + kEpsilon;
    const double above = loss();
    value = middle - kEpsilon;
    gradient.push_back((above - loss()) / (2 * kEpsilon));
    value = middle;
  }
  return at::tensor(gradient, at::kDouble);
}

std::vector<double> doubles(const at::Tensor& tensor) {
  const at::Tensor flat =
      tensor.detach().to(at::kDouble).contiguous().view({-1});
  const double* data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

struct Gradients {
  double loss = 0.0;
  at::Tensor rows = {};
  at::Tensor weights = {};
};

// By one pass through a layer. On the engine an SGD step with learning rate 1
// from the table shows the row gradients.
Gradients gradients_of(
    const FeatureConfig& config,
    const Sample& sample,
    const at::Tensor& weights,
    const at::Tensor& upstream,
    Strategy strategy) {
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = config,
      .optimizer = optim::SGD{.learning_rate = 1.0},
      .strategy = strategy});
  const at::Tensor before = test::tables_of(layer)[0];
  Weights nest;
  at::Tensor leaf;
  if (weights.defined()) {
    leaf = weights.clone().requires_grad_();
    nest = std::optional<Feature>(leaf);
  }
  const at::Tensor activation = layer->forward(sample.feature, nest).leaf();
  std::vector<int64_t> shape = sample.batch_shape;
  shape.push_back(config.table->dim);
  EXPECT_EQ(activation.sizes(), shape);
  const at::Tensor loss =
      (activation * upstream.view(shape)).sum() + activation.square().sum() / 2;
  loss.backward();
  const bool on_host = strategy == Strategy::host();
  return {
      .loss = loss.item<double>(),
      .rows = on_host ? layer->parameters()[0].grad()
                      : before - test::tables_of(layer)[0],
      .weights = leaf.defined() ? leaf.grad() : at::Tensor()};
}

class LookupGradientTest : public testing::TestWithParam<KindName> {
 protected:
  static void check(Kind kind, Combiner combiner, bool weighted, int64_t dim) {
    const Sample sample = make_sample(kind);
    const FeatureConfig config{
        .table = make_table(
            {.name = "t",
             .vocabulary_size = kVocab,
             .dim = dim,
             .combiner = combiner,
             .initializer = initializers::Uniform{.low = -1, .high = 1}}),
        .max_sequence_length = is_sequence(kind) ? kLength : 0};
    const TPUEmbedding initial(TPUEmbeddingOptions{.features = config});
    const auto count = static_cast<int64_t>(sample.values.size());
    const at::Tensor weights =
        weighted ? at::rand({count}) + 0.5 : at::Tensor();
    int64_t size = dim;
    for (const int64_t length : sample.batch_shape) {
      size *= length;
    }
    const at::Tensor upstream = at::rand({size}) - 0.5;

    std::vector<double> table = doubles(test::tables_of(initial)[0]);
    std::vector<double> weight =
        doubles(weighted ? weights : at::ones({count}));
    const std::vector<double> slopes = doubles(upstream);
    const auto loss = [&] {
      // A sequence is not combined.
      return reference_loss(
          sample,
          is_sequence(kind) || is_dense(kind) ? Combiner::kSum : combiner,
          dim,
          table,
          weight,
          slopes);
    };
    const at::Tensor rows = central_differences(table, loss).view({-1, dim});
    for (const Strategy& strategy : {Strategy::engine(), Strategy::host()}) {
      SCOPED_TRACE(strategy.name());
      const Gradients actual =
          gradients_of(config, sample, weights, upstream, strategy);
      EXPECT_NEAR(actual.loss, loss(), 1e-5 * (1 + std::abs(loss())));
      test::expect_close(actual.rows, rows, 1e-5, 2e-6);
      if (weighted) {
        const at::Tensor expected = central_differences(weight, loss);
        test::expect_close(actual.weights, expected, 1e-5, 3e-6);
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    LookupGradientTest,
    testing::Values(
        KindName{Kind::kDense, "Dense"},
        KindName{Kind::kDenseGrid, "DenseGrid"},
        KindName{Kind::kSparse, "Sparse"},
        KindName{Kind::kSparseRank3, "SparseRank3"},
        KindName{Kind::kSparseSequence, "SparseSequence"},
        KindName{Kind::kRagged, "Ragged"},
        KindName{Kind::kRaggedSequence, "RaggedSequence"}),
    [](const auto& info) { return info.param.name; });

TEST_P(LookupGradientTest, AgreesWithCentralDifferences) {
  const Kind kind = GetParam().kind;
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    for (const int64_t dim : {1, 3, 8, 33}) {
      for (const bool weighted : {false, true}) {
        if (weighted && (is_dense(kind) || is_sequence(kind))) {
          continue;  // An error, tested elsewhere.
        }
        SCOPED_TRACE(
            to_string(combiner) + " dim " + std::to_string(dim) +
            (weighted ? " weighted" : ""));
        check(kind, combiner, weighted, dim);
      }
    }
  }
}

class WeightGradientTest : public testing::TestWithParam<Strategy> {
 protected:
  TPUEmbedding layer(Combiner combiner) const {
    const auto table = make_table(
        {.name = "t",
         .vocabulary_size = 4,
         .dim = 2,
         .combiner = combiner,
         .initializer = initializers::RowId{.offset = 1}});
    return TPUEmbedding(TPUEmbeddingOptions{
        .features =
            {{"a",
              FeatureConfig{.table = table, .out_of_range = OutOfRange::kZero}},
             {"b", FeatureConfig{.table = table}}},
        .optimizer = optim::SGD{.learning_rate = 1.0},
        .strategy = GetParam()});
  }
};

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    WeightGradientTest,
    testing::Values(Strategy::engine(), Strategy::host()),
    [](const auto& info) { return info.param.name(); });

TEST_P(WeightGradientTest, OfDroppedIdsIsZero) {
  const RaggedFeature ids = test::ragged({{0, -1, 1}, {-1}, {2, 3}});
  for (const Combiner combiner : {Combiner::kMean, Combiner::kSqrtn}) {
    SCOPED_TRACE(to_string(combiner));
    const at::Tensor weights =
        test::floats({1, 5, 1, 5, -1, 3}).requires_grad_();
    layer(combiner)
        ->forward(
            {{"a", ids}, {"b", ids}},
            {{"a", weights}, {"b", std::nullopt}})["a"]
        .sum()
        .backward();
    // Bag 0 is (w0 * 1 + w2 * 2) / (w0 + w2) or / sqrt(w0^2 + w2^2), in two
    // columns; a bag of one weighted id does not depend on its weight.
    const float denominator =
        combiner == Combiner::kMean ? 2.0F : std::sqrt(2.0F);
    const at::Tensor expected =
        2 * test::floats({1 - 1.5, 0, 2 - 1.5, 0, 0, 0}) / denominator;
    test::expect_close(weights.grad(), expected);
  }
}

TEST_P(WeightGradientTest, OfZeroRowsCountsInTheDenominator) {
  const RaggedFeature ids = test::ragged({{0, 9, 1}});
  const at::Tensor weights = test::floats({1, 1, 2}).requires_grad_();
  const auto activations = layer(Combiner::kMean)
                               ->forward(
                                   {{"a", ids}, {"b", test::ragged({{}})}},
                                   {{"a", weights}, {"b", std::nullopt}});
  test::expect_close(activations["a"], test::floats({1, 2}, {1.25, 1.25}));
  activations["a"].sum().backward();
  test::expect_close(
      weights.grad(),
      test::floats({2 * (1 - 1.25F) / 4, -2 * 1.25F / 4, 2 * (2 - 1.25F) / 4}));
}

TEST_P(WeightGradientTest, FlowsThroughWhateverMadeTheWeights) {
  const RaggedFeature ids = test::ragged({{0, 1}, {2}});
  const at::Tensor raw = at::zeros({3}, at::kDouble).requires_grad_();
  const at::Tensor weights = raw.exp();
  const auto activations =
      layer(Combiner::kSum)
          ->forward(
              {{"a", ids}, {"b", ids}},
              {{"a", weights}, {"b", RaggedFeature{weights, ids.row_splits}}});
  (activations["a"].sum() + 3 * activations["b"].sum()).backward();
  test::expect_close(raw.grad(), test::floats({8, 16, 24}));
}

TEST_P(WeightGradientTest, OfAnUnusedFeatureIsZeroOrUndefined) {
  const RaggedFeature ids = test::ragged({{0, 1}});
  const at::Tensor weights = at::ones({2}).requires_grad_();
  layer(Combiner::kMean)
      ->forward(
          {{"a", ids}, {"b", ids}}, {{"a", weights}, {"b", std::nullopt}})["b"]
      .sum()
      .backward();
  EXPECT_TRUE(
      !weights.grad().defined() || at::equal(weights.grad(), at::zeros({2})));
}

TEST(EngineWeightGradientTest, AloneUpdatesNoTable) {
  const auto table = make_table(
      {.name = "t",
       .vocabulary_size = 4,
       .dim = 2,
       .combiner = Combiner::kSum,
       .initializer = initializers::RowId{.offset = 1}});
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = FeatureConfig{.table = table},
      .optimizer = optim::SGD{.learning_rate = 1.0}});
  const auto before = test::tables_of(layer);
  const at::Tensor weights = at::ones({2}).requires_grad_();
  const Weights nest = std::optional<Feature>(weights);
  const RaggedFeature ids = test::ragged({{0, 3}});

  const at::Tensor loss = layer->forward(ids, nest).leaf().sum();
  const auto gradient = torch::autograd::grad(
      {loss}, {weights}, /*grad_outputs=*/{}, /*retain_graph=*/true);
  test::expect_close(gradient[0], test::floats({2, 8}));
  test::expect_same_tables(layer, before);

  layer->virtual_variable().requires_grad_(false);
  layer->forward(ids, nest).leaf().sum().backward();
  test::expect_close(weights.grad(), test::floats({2, 8}));
  test::expect_same_tables(layer, before);
  EXPECT_EQ(layer->iterations(), 0);

  // The retained loss still may update: nothing has used it so far.
  layer->virtual_variable().requires_grad_(true);
  loss.backward();
  EXPECT_EQ(layer->iterations(), 1);
}

}  // namespace
}  // namespace tessera
