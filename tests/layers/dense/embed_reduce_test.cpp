// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/embed_reduce.h>
#include <tessera/layers/layer_json.h>

#include "tests/features/feature_builders.h"

namespace tessera::test::embed_reduce_test {

constexpr Combiner kCombiners[] = {
    Combiner::kSum,
    Combiner::kMean,
    Combiner::kSqrtn};

// A layer whose row i has the value i in all three columns.
EmbedReduce numbered(Combiner combiner) {
  return EmbedReduce(EmbedReduceOptions{
      .input_dim = 7,
      .output_dim = 3,
      .combiner = combiner,
      .embeddings_initializer = initializers::RowId{}});
}

at::Tensor first_column(const at::Tensor& rows) {
  return rows.select(1, 0);
}

TEST(EmbedReduceTest, DenseSparseAndRaggedIdsAgree) {
  for (const Combiner combiner : kCombiners) {
    EmbedReduce layer(EmbedReduceOptions{
        .input_dim = 7, .output_dim = 3, .combiner = combiner});
    const at::Tensor dense = int64s({1, 2, 2, 6}).view({2, 2});
    const at::Tensor weights = floats({1, -3, 0.5, 2}).requires_grad_();
    const auto gradients = [&](const Feature& ids, const Feature& factors) {
      layer->zero_grad();
      weights.mutable_grad() = at::Tensor();
      layer->forward(ids, factors).square().sum().backward();
      return std::pair(
          layer->parameters()[0].grad().clone(), weights.grad().clone());
    };
    const auto [table, factor] = gradients(dense, weights.view({2, 2}));
    const SparseFeature sparse_ids = sparse({{1, 2}, {2, 6}}, 2);
    for (const Feature& ids :
         {Feature(ragged({{1, 2}, {2, 6}})), Feature(sparse_ids)}) {
      expect_close(layer->forward(ids), layer->forward(dense));
      expect_close(
          layer->forward(ids, weights),
          layer->forward(dense, weights.view({2, 2})));
      const auto [other_table, other_factor] = gradients(ids, weights);
      expect_close(other_table, table);
      expect_close(other_factor, factor);
    }
    const SparseFeature sparse_weights{
        sparse_ids.indices, weights, sparse_ids.dense_shape};
    expect_close(
        layer->forward(sparse_ids, sparse_weights),
        layer->forward(dense, weights.view({2, 2})));
  }
}

TEST(EmbedReduceTest, DropsNoIdsOrWeights) {
  // Neither the id 0 nor a negative weight is dropped.
  EmbedReduce mean = numbered(Combiner::kMean);
  expect_close(
      first_column(mean->forward(int64s({0, 6}).view({1, 2}))), floats({3}));
  const at::Tensor weights = floats({-1, 3});
  expect_close(
      first_column(mean->forward(ragged({{2, 6}}), weights)), floats({8}));
  expect_close(
      first_column(
          mean->forward(int64s({2, 6}).view({1, 2}), weights.view({1, 2}))),
      floats({8}));
}

TEST(EmbedReduceTest, EmptyExamplesGiveZeros) {
  for (const Combiner combiner : kCombiners) {
    EmbedReduce layer = numbered(combiner);
    EXPECT_TENSOR_EQ(
        layer->forward(at::zeros({2, 0}, at::kLong)), at::zeros({2, 3}));
    EXPECT_EQ(
        layer->forward(at::zeros({0, 4}, at::kLong)).sizes(),
        (std::vector<int64_t>{0, 3}));
    EXPECT_EQ(
        layer->forward(at::zeros({0}, at::kLong)).sizes(),
        (std::vector<int64_t>{0, 3}));
    EXPECT_TENSOR_EQ(layer->forward(ragged({{}, {}})), at::zeros({2, 3}));
    at::Tensor sum = layer->forward(at::zeros({2, 0}, at::kLong)).sum();
    sum.backward();
    EXPECT_TENSOR_EQ(layer->parameters()[0].grad(), at::zeros({7, 3}));
  }
}

TEST(EmbedReduceTest, AnyOptimizerTrainsTheTable) {
  torch::manual_seed(5);
  EmbedReduce layer(EmbedReduceOptions{.input_dim = 70, .output_dim = 30});
  ASSERT_EQ(
      layer->named_parameters().keys(),
      (std::vector<std::string>{"embeddings"}));
  const at::Tensor before = layer->parameters()[0].detach().clone();
  EXPECT_LE(before.abs().max().item<double>(), 0.05);
  EXPECT_GT(before.abs().max().item<double>(), 0.045);
  torch::manual_seed(5);
  EmbedReduce same_seed(EmbedReduceOptions{.input_dim = 70, .output_dim = 30});
  EXPECT_TENSOR_EQ(same_seed->parameters()[0], before);

  torch::optim::Adam optimizer(layer->parameters(), 0.1);
  layer->forward(int64s({1, 2}).view({1, 2})).sum().backward();
  optimizer.step();
  EXPECT_FALSE(at::equal(layer->parameters()[0][1], before[1]));
  EXPECT_TENSOR_EQ(layer->parameters()[0][3], before[3]);

  EmbedReduce copy = clone_of(layer);
  EXPECT_TENSOR_EQ(copy->parameters()[0], layer->parameters()[0]);
  EXPECT_FALSE(copy->parameters()[0].is_alias_of(layer->parameters()[0]));
  const Feature ids = ragged({{1, 2}});
  EXPECT_TENSOR_EQ(copy->forward(ids), layer->forward(ids));
}

TEST(EmbedReduceTest, TakesBFloat16) {
  EmbedReduce layer = numbered(Combiner::kMean);
  layer->to(at::kBFloat16);
  const at::Tensor ids = int64s({1, 3}).view({1, 2});
  const at::Tensor row = layer->forward(ids, at::ones({1, 2}));
  EXPECT_EQ(row.scalar_type(), at::kBFloat16);
  expect_close(first_column(row), floats({2}));
  EXPECT_VALUE_ERROR(
      layer->forward(ragged({{1}})),
      "[feature 'EmbedReduce'] the tensor of its table");
}

TEST(EmbedReduceTest, ComputesItsOutputShape) {
  EmbedReduce layer = numbered(Combiner::kSum);
  const PartialShape expected{std::nullopt, 3};
  EXPECT_EQ(
      layer->compute_output_shape(PartialShape{std::nullopt}).leaf(), expected);
  EXPECT_EQ(
      layer->compute_output_shape(PartialShape{std::nullopt, 9}).leaf(),
      expected);
  EXPECT_VALUE_ERROR(
      layer->compute_output_shape(PartialShape{1, 2, 3}),
      "expected one shape, [batch] or [batch, n], but got [1, 2, 3]");
  EXPECT_VALUE_ERROR(layer->compute_output_shape({}), "but got a map");
}

TEST(EmbedReduceTest, RefusesOptions) {
  expect_refusals<EmbedReduceOptions>(
      {{{},
        "[EmbedReduce] input_dim and output_dim must be >= 1, but got 0 and 0"},
       {{.input_dim = std::numeric_limits<int64_t>::max(), .output_dim = 1},
        "vocabulary_size"},
       {{.input_dim = 1,
         .output_dim = 1,
         .embeddings_initializer = initializers::Normal{.stddev = -1}},
        "stddev must be >= 0"}},
      [](const EmbedReduceOptions& options) { EmbedReduce layer(options); });
  EXPECT_VALUE_ERROR(
      JsonValue<EmbedReduceOptions>::read(
          {{"input_dim", 1}, {"output_dim", 1}, {"combiner", "max"}}, "x"),
      "max");
}

TEST(EmbedReduceTest, RefusesIds) {
  EmbedReduce layer = numbered(Combiner::kSum);
  expect_refusals<Feature, c10::IndexError>(
      {{int64s({1, 7, 2}),
        "[EmbedReduce] ids must be in [0, 7), but the one at position 1 is 7"},
       {int32s({1, -1}).view({1, 2}), "the one at position 1 is -1"},
       {ragged({{1, 7}}), "EmbedReduce"},
       {sparse({{1, -1}}, 2), "EmbedReduce"}},
      [&](const Feature& x) { layer->forward(x); });
  EXPECT_TYPE_ERROR(
      layer->forward(floats({1})), "ids must be int32 or int64, but got Float");
  expect_refusals<Feature>(
      {{at::Tensor(), "expected a tensor of ids"},
       {at::zeros({1, 2, 3}, at::kLong),
        "[batch] or [batch, n], but got [1, 2, 3]"},
       {at::zeros({}, at::kLong), "[batch, n], but got []"}},
      [&](const Feature& x) { layer->forward(x); });
  SparseFeature deep = sparse({{1}}, 1);
  deep.indices = at::zeros({1, 3}, at::kLong);
  deep.dense_shape = int64s({1, 1, 1});
  EXPECT_VALUE_ERROR(layer->forward(deep), "their dense_shape has 3 entries");
  EXPECT_TYPE_ERROR(layer->forward(SparseFeature{}), "EmbedReduce");
  EXPECT_TYPE_ERROR(layer->forward(RaggedFeature{}), "EmbedReduce");
}

TEST(EmbedReduceTest, RefusesWeights) {
  EmbedReduce layer = numbered(Combiner::kSum);
  const at::Tensor ids = int64s({1, 2}).view({1, 2});
  EXPECT_VALUE_ERROR(
      layer->forward(ids, floats({1, 2})),
      "weights must have the shape of the ids, [1, 2], but got [2]");
  EXPECT_VALUE_ERROR(
      layer->forward(ids, at::Tensor()),
      "weights: expected a tensor, but got an undefined tensor. Leave the "
      "weights out if all are 1.");
  EXPECT_TYPE_ERROR(
      layer->forward(ids, ids),
      "weights must be a dense floating-point tensor");
  EXPECT_TYPE_ERROR(
      layer->forward(ids, ragged({{1, 2}})),
      "weights of dense ids must be a dense tensor, but got a sparse or ragged "
      "feature. Pass ids and weights in the same form.");
  EXPECT_VALUE_ERROR(
      layer->forward(ragged({{1, 2}}), floats({1})), "EmbedReduce");
}

}  // namespace tessera::test::embed_reduce_test
