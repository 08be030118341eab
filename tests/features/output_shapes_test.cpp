// SPDX-License-Identifier: Apache-2.0
// An output shape comes from the feature config, build() or the first batch, in this
// order.
#include <tessera/engine/embedding_engine.h>
#include <tessera/optim/optimizers/sgd.h>

#include "tests/features/feature_builders.h"

namespace tessera::test::output_shapes_test {

using Sizes = std::vector<int64_t>;

constexpr auto kUnknown = std::nullopt;
constexpr int64_t kDim = 3;

TablePtr table() {
  return make_table(
      {.name = "t",
       .vocabulary_size = 10,
       .dim = kDim,
       .combiner = Combiner::kSum,
       .initializer = initializers::RowId{}});
}

EmbeddingEngineOptions engine_options(
    FeatureConfig config,
    bool verify = true) {
  config.table = table();
  return {
      .features = config,
      .optimizer = optim::SGD{},
      .verify_output_shapes = verify};
}

// A sparse feature without ids.
SparseFeature sparse_of(const Sizes& shape) {
  return {
      at::zeros({0, static_cast<int64_t>(shape.size())}, at::kLong),
      int64s({}),
      at::tensor(shape, at::kLong)};
}

Feature ragged_of(int64_t rows) {
  return ragged(Rows(rows, std::vector<int64_t>{1}));
}

Sizes shape_of(EmbeddingEngine& engine, const Feature& feature) {
  engine.enqueue(feature, {}, {.training = false});
  return engine.dequeue().leaf().sizes().vec();
}

TEST(OutputShapesTest, TheFirstBatchFixesRankAndInnerDimensions) {
  EmbeddingEngine engine(engine_options({}));
  EXPECT_EQ(shape_of(engine, sparse_of({2, 5, 4})), (Sizes{2, 5, kDim}));
  EXPECT_EQ(shape_of(engine, sparse_of({7, 5, 9})), (Sizes{7, 5, kDim}));
  EXPECT_EQ(shape_of(engine, sparse_of({0, 5, 9})), (Sizes{0, 5, kDim}));
  // Ragged rows are reshaped to the known inner dimension.
  EXPECT_EQ(shape_of(engine, ragged_of(15)), (Sizes{3, 5, kDim}));
  expect_refusals<Feature>(
      {{sparse_of({2, 4, 4}),
        "inconsistent shape: the output shape is set to [?, 5] (by output_shape, "
        "build() or the first batch), but this batch gives [2, 4]"},
       {sparse_of({2, 5}), "but this batch gives [2]"},
       {ragged_of(14), "but this batch has 14 rows"}},
      [&](const Feature& x) { shape_of(engine, x); });
}

TEST(OutputShapesTest, ABatchOfOneStaysABatch) {
  EmbeddingEngine engine(engine_options({}));
  EXPECT_EQ(shape_of(engine, int64s({1})), (Sizes{1, kDim}));
  EXPECT_EQ(shape_of(engine, int64s({1, 2})), (Sizes{2, kDim}));
  EXPECT_EQ(shape_of(engine, at::zeros({4, 1}, at::kLong)), (Sizes{4, kDim}));
  EXPECT_VALUE_ERROR(
      shape_of(engine, at::zeros({4, 2}, at::kLong)), "inconsistent shape");
}

TEST(OutputShapesTest, ARefusedFirstBatchFixesNothing) {
  EmbeddingEngine engine(engine_options({}));
  EXPECT_INDEX_ERROR(
      shape_of(engine, at::full({2, 5}, 10, at::kLong)), "got 10");
  EXPECT_EQ(shape_of(engine, int64s({1})), (Sizes{1, kDim}));
}

TEST(OutputShapesTest, BuildDropsTheLastDimensionOfRank2AndAbove) {
  const auto built = [](const PartialShape& input, FeatureConfig config = {}) {
    auto engine =
        std::make_unique<EmbeddingEngine>(engine_options(std::move(config)));
    engine->build(Nest<PartialShape>(input));
    return engine;
  };
  EXPECT_EQ(shape_of(*built({4}), ragged_of(4)), (Sizes{4, kDim}));
  EXPECT_EQ(shape_of(*built({4, 9}), ragged_of(4)), (Sizes{4, kDim}));
  EXPECT_EQ(shape_of(*built({2, 4, 9}), ragged_of(8)), (Sizes{2, 4, kDim}));
  EXPECT_EQ(
      shape_of(*built({2, 4, kUnknown}), ragged_of(8)), (Sizes{2, 4, kDim}));
  EXPECT_EQ(
      shape_of(*built({kUnknown, 4, 1}), at::zeros({5, 4, 1}, at::kLong)),
      (Sizes{5, 4, kDim}));
  const FeatureConfig sequence{.max_sequence_length = 6};
  for (const PartialShape& input :
       {PartialShape{4}, PartialShape{4, 9}, PartialShape{4, 6, 9}}) {
    EXPECT_EQ(
        shape_of(*built(input, sequence), ragged_of(4)), (Sizes{4, 6, kDim}));
  }
  // The second-to-last dimension of a sparse feature is the position.
  EXPECT_EQ(
      shape_of(*built({4, 5, 9}, sequence), sparse_of({4, 5, 9})),
      (Sizes{4, 6, kDim}));
  EXPECT_EQ(
      shape_of(*built({2, 3, 6, 9}, sequence), sparse_of({2, 3, 7, 9})),
      (Sizes{2, 3, 6, kDim}));
  EXPECT_VALUE_ERROR(
      shape_of(*built({4, 9}), ragged_of(3)),
      "the output shape is set to [4] (by output_shape, build() or the first "
      "batch), but this batch has 3 rows");
  EXPECT_VALUE_ERROR(
      shape_of(*built({4, 9}, sequence), sparse({{1}}, 2)),
      "is set to [4, 6] (by output_shape, build() or the first batch), but this "
      "batch gives [1, 6]");
  expect_refusals<PartialShape>(
      {{{}, "an input shape must have rank 1 or above, but got []"},
       {{-1, 2}, "must have sizes >= 0, but got [-1, 2]"},
       {{int64_t{1} << 40, int64_t{1} << 40, 1},
        "a batch must have fewer than 2^32 - 1 bags"},
       {{1, kUnknown, kUnknown},
        "the output shape [1, ?] is not fully defined"}},
      [&](const PartialShape& x) { built(x); });
}

TEST(OutputShapesTest, BuildTakesABatchSize) {
  EmbeddingEngine engine(engine_options({}));
  engine.build(4);
  EXPECT_EQ(shape_of(engine, ragged_of(4)), (Sizes{4, kDim}));
  EXPECT_VALUE_ERROR(shape_of(engine, int64s({1})), "is set to [4]");
  engine.build(4);
  EXPECT_VALUE_ERROR(
      engine.build(5),
      "inconsistent shape: the output shape is set to [4], but this build gives "
      "[5]");
  EmbeddingEngine other(engine_options({}));
  EXPECT_VALUE_ERROR(other.build(0), "batch_size must be >= 1, but got 0");
}

TEST(OutputShapesTest, TheShapeOfTheFeatureHasPriorityOverBuild) {
  const FeatureConfig config{.output_shape = Sizes{2, 4}};
  EmbeddingEngine engine(engine_options(config));
  engine.build(Nest<PartialShape>(PartialShape{2, kUnknown, kUnknown}));
  EXPECT_EQ(shape_of(engine, ragged_of(8)), (Sizes{2, 4, kDim}));
  EXPECT_EQ(shape_of(engine, sparse_of({2, 4, 9})), (Sizes{2, 4, kDim}));
  EmbeddingEngine spreading(engine_options(config));
  // Each row is a sequence of 4 positions.
  EXPECT_EQ(shape_of(spreading, ragged_of(2)), (Sizes{2, 4, kDim}));
  EmbeddingEngine other(engine_options(config));
  EXPECT_VALUE_ERROR(
      other.build(Nest<PartialShape>(PartialShape{1, 1, 1})),
      "inconsistent shape: the output shape is set to [2, 4], but this build "
      "gives [1, 1]");
  EmbeddingEngine by_batch(engine_options(config));
  by_batch.build(8);
  EXPECT_EQ(shape_of(by_batch, ragged_of(8)), (Sizes{2, 4, kDim}));
}

TEST(OutputShapesTest, TheFirstRaggedBatchFixesItsNumberOfRows) {
  const FeatureConfig config{.output_shape = Sizes{4, 2}};
  EmbeddingEngine bags(engine_options(config));
  EXPECT_VALUE_ERROR(
      shape_of(bags, ragged_of(3)),
      "the product of output_shape must be a multiple of");
  EXPECT_EQ(shape_of(bags, ragged_of(8)), (Sizes{4, 2, kDim}));
  // 4 rows are a short batch, not 4 sequences. The refused batch has fixed nothing.
  EXPECT_VALUE_ERROR(
      shape_of(bags, ragged_of(4)),
      "output_shape [4, 2] fixes the number of rows of a ragged batch, which was "
      "8 in the first one, but this batch has 4 rows.");
  EXPECT_VALUE_ERROR(shape_of(bags, ragged_of(0)), "this batch has 0 rows.");
  EXPECT_EQ(shape_of(bags, ragged_of(8)), (Sizes{4, 2, kDim}));
  EmbeddingEngine sequences(engine_options(config));
  EXPECT_EQ(shape_of(sequences, ragged_of(4)), (Sizes{4, 2, kDim}));
  EXPECT_VALUE_ERROR(
      shape_of(sequences, ragged_of(2)), "was 4 in the first one");
  EXPECT_VALUE_ERROR(
      shape_of(sequences, ragged_of(8)), "was 4 in the first one");
  EmbeddingEngine unverified(engine_options(config, /*verify=*/false));
  unverified.build(4);
  EXPECT_EQ(shape_of(unverified, ragged_of(8)), (Sizes{4, 2, kDim}));
  EXPECT_EQ(shape_of(unverified, ragged_of(4)), (Sizes{4, 2, kDim}));
}

TEST(OutputShapesTest, AnUnknownFirstDimensionTakesShortBatches) {
  const FeatureConfig config{.output_shape = PartialShape{kUnknown, 2}};
  EmbeddingEngine engine(engine_options(config));
  for (const int64_t samples : {4, 2, 1, 0, 4}) {
    EXPECT_EQ(
        shape_of(engine, ragged_of(2 * samples)), (Sizes{samples, 2, kDim}));
  }
  EXPECT_VALUE_ERROR(
      shape_of(engine, ragged_of(3)),
      "is set to [?, 2] (by output_shape, build() or the first batch), but this "
      "batch has 3 rows");
  EXPECT_EQ(shape_of(engine, sparse_of({3, 2, 9})), (Sizes{3, 2, kDim}));
  EXPECT_VALUE_ERROR(
      shape_of(engine, sparse_of({3, 4, 9})), "this batch gives [3, 4]");
  // A build fixes the first dimension, and rows are still bags.
  EmbeddingEngine built(engine_options(config));
  built.build(4);
  EXPECT_EQ(shape_of(built, ragged_of(8)), (Sizes{4, 2, kDim}));
  EXPECT_VALUE_ERROR(
      shape_of(built, ragged_of(4)),
      "is set to [4, 2] (by output_shape, build() or the first batch), but this "
      "batch has 4 rows");
  EXPECT_VALUE_ERROR(
      built.build(Nest<PartialShape>(PartialShape{4, 3, 9})),
      "the output shape is set to [4, 2], but this build gives [4, 3]");
}

TEST(OutputShapesTest, UnknownInnerDimensionsFollowFromBuildOrTheFirstBatch) {
  const FeatureConfig config{.output_shape = PartialShape{kUnknown, kUnknown}};
  EmbeddingEngine engine(engine_options(config));
  EXPECT_VALUE_ERROR(
      shape_of(engine, ragged_of(6)), "at most one unknown dimension");
  EXPECT_EQ(shape_of(engine, sparse_of({2, 3, 9})), (Sizes{2, 3, kDim}));
  EXPECT_EQ(shape_of(engine, ragged_of(6)), (Sizes{2, 3, kDim}));
  EXPECT_VALUE_ERROR(
      shape_of(engine, sparse_of({2, 4, 9})), "is set to [?, 3]");
  EmbeddingEngine built(engine_options(config));
  EXPECT_VALUE_ERROR(
      built.build(4), "the output shape [4, ?] is not fully defined");
  built.build(Nest<PartialShape>(PartialShape{kUnknown, 3, kUnknown}));
  EXPECT_EQ(shape_of(built, ragged_of(9)), (Sizes{3, 3, kDim}));
}

// Upstream's test_enqueue_dense_sparse_ragged.
TEST(OutputShapesTest, DenseSparseAndRaggedOfRank3InOneBatch) {
  const FeatureConfig config{.table = table()};
  EmbeddingEngine engine(
      {.features = {{"d", config}, {"s", config}, {"r", config}}});
  engine.build(
      {{"d", PartialShape{2, 4, 1}},
       {"s", PartialShape{2, 4, 2}},
       {"r", PartialShape{2, 4, 3}}});
  engine.enqueue(
      {{"d", at::full({2, 4, 1}, 5, at::kLong)},
       {"s",
        SparseFeature{
            .indices = int64s({0, 1, 0, 0, 1, 1, 1, 3, 0}).view({3, 3}),
            .values = int64s({1, 2, 7}),
            .dense_shape = int64s({2, 4, 2})}},
       {"r", ragged({{1}, {}, {2, 3}, {}, {}, {}, {}, {9, 9}})}},
      {},
      {.training = false});
  const auto activations = engine.dequeue();
  for (const at::Tensor& activation : activations.flatten()) {
    EXPECT_EQ(activation.sizes(), at::IntArrayRef({2, 4, kDim}));
  }
  const auto value = [&](const char* feature, int64_t i, int64_t j) {
    return activations[feature][i][j][0].item<float>();
  };
  EXPECT_EQ(value("d", 1, 3), 5);
  EXPECT_EQ(value("s", 0, 1), 1 + 2);
  EXPECT_EQ(value("s", 1, 3), 7);
  EXPECT_EQ(value("s", 0, 0), 0);
  EXPECT_EQ(value("r", 0, 2), 2 + 3);
  EXPECT_EQ(value("r", 1, 3), 9 + 9);
}

TEST(OutputShapesTest, VerificationCanBeSwitchedOff) {
  EmbeddingEngine engine(engine_options({}, /*verify=*/false));
  EXPECT_TORCH_ERROR(
      engine.enqueue(ragged_of(4)),
      "[enqueue] with verify_output_shapes = false, the engine does not learn "
      "output shapes from the first batch, but it is unbuilt. Call build()");
  engine.build();
  EXPECT_TORCH_ERROR(engine.enqueue(ragged_of(4)), "Call build() with input");
  engine.build(Nest<PartialShape>(PartialShape{4, 9}));
  EXPECT_EQ(shape_of(engine, ragged_of(3)), (Sizes{3, kDim}));
  EXPECT_EQ(shape_of(engine, sparse_of({2, 5, 9})), (Sizes{2, 5, kDim}));
}

TEST(OutputShapesTest, FeaturesMayDifferInBatchSize) {
  const TablePtr shared = table();
  EmbeddingEngine engine(
      {.features = {
           {"a", FeatureConfig{.table = shared}},
           {"b", FeatureConfig{.table = shared}}}});
  engine.build({{"a", PartialShape{2, 4, 1}}, {"b", PartialShape{6, 9}}});
  engine.enqueue({{"a", at::zeros({2, 4, 1}, at::kLong)}, {"b", ragged_of(6)}});
  EXPECT_EQ(engine.dequeue()["a"].sizes(), at::IntArrayRef({2, 4, kDim}));
  EXPECT_VALUE_ERROR(
      engine.build({{"a", PartialShape{2, 4, 1}}}), "missing entry 'b'");
}

TEST(OutputShapesTest, AFixedBatchSizeHoldsForAllFeatures) {
  const TablePtr shared = table();
  const auto make = [&] {
    return std::make_unique<EmbeddingEngine>(EmbeddingEngineOptions{
        .features =
            {{"a", FeatureConfig{.table = shared}},
             {"b", FeatureConfig{.table = shared, .max_sequence_length = 2}}},
        .fixed_batch_size = true});
  };
  const auto enqueue = [](EmbeddingEngine& engine, int64_t a, int64_t b) {
    engine.enqueue(
        {{"a", ragged_of(a)}, {"b", ragged_of(b)}}, {}, {.training = false});
    engine.dequeue();
  };
  auto by_first = make();
  EXPECT_VALUE_ERROR(
      enqueue(*by_first, 4, 5),
      "[feature 'b'] with fixed_batch_size = true, all features must have the "
      "same batch size, but got 4 and 5");
  enqueue(*by_first, 0, 0);  // fixes nothing
  enqueue(*by_first, 4, 4);
  enqueue(*by_first, 4, 4);
  EXPECT_VALUE_ERROR(enqueue(*by_first, 3, 3), "is set to [4]");
  auto by_build = make();
  by_build->build(3);
  EXPECT_VALUE_ERROR(enqueue(*by_build, 4, 4), "is set to [3]");
  enqueue(*by_build, 3, 3);
  EXPECT_VALUE_ERROR(
      make()->build({{"a", PartialShape{3}}, {"b", PartialShape{4}}}),
      "but got 3 and 4");
  // A batch size that is known for one feature holds for all features. If it is known
  // for none, the first batch fixes it.
  auto by_half = make();
  by_half->build({{"a", PartialShape{3}}, {"b", PartialShape{kUnknown, 9}}});
  EXPECT_VALUE_ERROR(
      enqueue(*by_half, 3, 4), "[feature 'b'] inconsistent shape");
  enqueue(*by_half, 3, 3);
  auto unknown = make();
  unknown->build(
      {{"a", PartialShape{kUnknown}}, {"b", PartialShape{kUnknown, 9}}});
  EXPECT_VALUE_ERROR(enqueue(*unknown, 4, 5), "but got 4 and 5");
  enqueue(*unknown, 4, 4);
  EXPECT_VALUE_ERROR(enqueue(*unknown, 3, 3), "is set to [4]");
}

}  // namespace tessera::test::output_shapes_test
