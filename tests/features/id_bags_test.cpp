// SPDX-License-Identifier: Apache-2.0
#include "src/features/id_bags.h"

#include "tests/features/feature_state.h"
#include "tests/test_util.h"

namespace tessera::test::id_bags_test {

using Shape = std::vector<int64_t>;

Shape activation_shape_of(const IdBags& bags) {
  const auto shape = bags.activation_shape();
  return {shape.begin(), shape.end()};
}

const at::Tensor kNoWeights;

IdBags bags_of(
    const Feature& feature,
    const FeatureConfig& config = {},
    Combiner combiner = Combiner::kSum,
    const at::Tensor& weights = kNoWeights) {
  return make_id_bags(feature_state(config, combiner), feature, weights);
}

// Row 0 has the ids 4 and 5 in columns 0 and 2, row 2 has the id 6 in column 0.
SparseFeature sparse_sample() {
  return {
      .indices = int64s({0, 0, 0, 2, 2, 0}).view({3, 2}),
      .values = int64s({4, 5, 6}),
      .dense_shape = int64s({3, 3})};
}

RaggedFeature ragged_sample() {
  return {.values = int64s({4, 5, 6, 7}), .row_splits = int64s({0, 3, 3, 4})};
}

// Dense features.

TEST(IdBagsTest, EachDenseIdIsABag) {
  const IdBags bags = bags_of(int64s({3, 0, 9}));
  EXPECT_EQ(ids_of(bags), (Ids{{3}, {0}, {9}}));
  EXPECT_TRUE(bags.offsets.empty());
  EXPECT_TRUE(bags.scales.empty());
  EXPECT_EQ(activation_shape_of(bags), (Shape{3, 3}));
}

TEST(IdBagsTest, DropsALastDimensionOfOneExceptForRankOne) {
  const at::Tensor ids = int64s({0, 1, 2, 3});
  EXPECT_EQ(bags_of(ids).batch_shape, (Shape{4}));
  EXPECT_EQ(bags_of(ids.view({4, 1})).batch_shape, (Shape{4}));
  EXPECT_EQ(bags_of(ids.view({2, 2})).batch_shape, (Shape{2, 2}));
  EXPECT_EQ(bags_of(ids.view({2, 2, 1})).batch_shape, (Shape{2, 2}));
  EXPECT_EQ(bags_of(ids.view({2, 1, 2})).batch_shape, (Shape{2, 1, 2}));
  EXPECT_EQ(bags_of(int64s({7})).batch_shape, (Shape{1}));
  EXPECT_EQ(bags_of(int64s({7}).view({1, 1})).batch_shape, (Shape{1}));
}

TEST(IdBagsTest, ADenseBatchMayBeEmpty) {
  for (const Shape& shape : {Shape{0}, Shape{0, 1}, Shape{0, 4}, Shape{2, 0}}) {
    const IdBags bags = bags_of(at::empty(shape, at::kLong));
    EXPECT_EQ(ids_of(bags), Ids{});
  }
  EXPECT_EQ(
      activation_shape_of(bags_of(at::empty({0, 4}, at::kLong))),
      (Shape{0, 4, 3}));
}

TEST(IdBagsTest, TakesInt32AndStridedIds) {
  EXPECT_EQ(ids_of(bags_of(int32s({3, 0}))), (Ids{{3}, {0}}));
  const at::Tensor every_second = int64s({1, 99, 2, 99}).slice(0, 0, 4, 2);
  EXPECT_EQ(ids_of(bags_of(every_second)), (Ids{{1}, {2}}));
  const at::Tensor transposed = int32s({1, 2, 3, 4}).view({2, 2}).t();
  EXPECT_EQ(ids_of(bags_of(transposed)), (Ids{{1}, {3}, {2}, {4}}));
}

// Sparse features.

TEST(IdBagsTest, SparseIdsAreCombinedOverTheLastDimension) {
  const IdBags bags = bags_of(sparse_sample());
  EXPECT_EQ(ids_of(bags), (Ids{{4, 5}, {}, {6}}));
  EXPECT_EQ(activation_shape_of(bags), (Shape{3, 3}));
}

TEST(IdBagsTest, SparseRowsNeedNotBeSorted) {
  const SparseFeature feature{
      .indices = int64s({2, 0, 0, 2, 0, 0, 2, 1}).view({4, 2}),
      .values = int64s({6, 5, 4, 7}),
      .dense_shape = int64s({3, 3})};
  const IdBags bags = bags_of(feature);
  EXPECT_EQ(ids_of(bags), (Ids{{5, 4}, {}, {6, 7}}));
  EXPECT_EQ(positions_of(bags), (Ids{{1, 2}, {}, {0, 3}}));
}

TEST(IdBagsTest, SparseOfRankThreeKeepsTwoBatchDimensions) {
  const SparseFeature feature{
      .indices = int64s({1, 1, 0, 0, 1, 4, 1, 1, 3}).view({3, 3}),
      .values = int64s({1, 2, 3}),
      .dense_shape = int64s({2, 2, 5})};
  const IdBags bags = bags_of(feature);
  EXPECT_EQ(ids_of(bags), (Ids{{}, {2}, {}, {1, 3}}));
  EXPECT_EQ(activation_shape_of(bags), (Shape{2, 2, 3}));
}

TEST(IdBagsTest, SparsePartsMayBeInt32AndStrided) {
  const SparseFeature feature{
      .indices = int32s({0, 0, 2, 0, 2, 0}).view({2, 3}).t(),
      .values = int32s({4, 99, 5, 99, 6, 99}).slice(0, 0, 6, 2),
      .dense_shape = int32s({3, 3})};
  EXPECT_EQ(ids_of(bags_of(feature)), (Ids{{4, 5}, {}, {6}}));
}

TEST(IdBagsTest, ASparseBatchMayBeEmpty) {
  SparseFeature feature{
      .indices = at::empty({0, 2}, at::kLong),
      .values = at::empty({0}, at::kLong),
      .dense_shape = int64s({2, 3})};
  EXPECT_EQ(ids_of(bags_of(feature)), (Ids{{}, {}}));
  feature.dense_shape = int64s({0, 3});
  EXPECT_EQ(ids_of(bags_of(feature)), Ids{});
  feature.dense_shape = int64s({2, 0});
  EXPECT_EQ(ids_of(bags_of(feature)), (Ids{{}, {}}));
}

TEST(IdBagsTest, ASparseCooTensorIsASparseFeature) {
  const at::Tensor coo = at::sparse_coo_tensor(
      int64s({0, 0, 1, 1}).view({2, 2}), int64s({7, 9}), {1, 2});
  EXPECT_EQ(ids_of(bags_of(with_sparse_as_feature(coo))), (Ids{{7, 9}}));
  const Feature dense = int64s({1});
  EXPECT_TRUE(std::get<at::Tensor>(with_sparse_as_feature(dense))
                  .is_same(std::get<at::Tensor>(dense)));
}

// Sequences.

TEST(IdBagsTest, ASparseSequenceIsPlacedByColumn) {
  const IdBags bags =
      bags_of(sparse_sample(), {.max_sequence_length = 3}, Combiner::kMean);
  EXPECT_EQ(ids_of(bags), (Ids{{4}, {}, {5}, {}, {}, {}, {6}, {}, {}}));
  EXPECT_EQ(activation_shape_of(bags), (Shape{3, 3, 3}));
  EXPECT_EQ(bags.combiner, Combiner::kSum);
  EXPECT_TRUE(bags.scales.empty());
}

TEST(IdBagsTest, ASparseSequenceIsTruncatedAndPadded) {
  EXPECT_EQ(
      ids_of(bags_of(sparse_sample(), {.max_sequence_length = 2})),
      (Ids{{4}, {}, {}, {}, {6}, {}}));
  EXPECT_EQ(
      ids_of(bags_of(sparse_sample(), {.max_sequence_length = 4})).size(), 12U);
}

TEST(IdBagsTest, ASparseSequenceAddsUpIdsAtOneCoordinate) {
  const SparseFeature feature{
      .indices = int64s({0, 1, 0, 1}).view({2, 2}),
      .values = int64s({4, 5}),
      .dense_shape = int64s({1, 2})};
  const IdBags bags =
      bags_of(feature, {.max_sequence_length = 2}, Combiner::kMean);
  EXPECT_EQ(ids_of(bags), (Ids{{}, {4, 5}}));
  EXPECT_EQ(bags.combiner, Combiner::kSum);
}

// Two examples of three positions with up to two ids each.
SparseFeature positions_sample() {
  return {
      .indices =
          int64s({0, 0, 0, 0, 0, 1, 0, 2, 0, 1, 1, 0, 1, 1, 1}).view({5, 3}),
      .values = int64s({1, 2, 3, 4, 5}),
      .dense_shape = int64s({2, 3, 2})};
}

TEST(IdBagsTest, ASparseSequenceOfRankThreeCombinesTheIdsOfAPosition) {
  const IdBags shorter =
      bags_of(positions_sample(), {.max_sequence_length = 2}, Combiner::kMean);
  EXPECT_EQ(ids_of(shorter), (Ids{{1, 2}, {}, {}, {4, 5}}));
  EXPECT_EQ(activation_shape_of(shorter), (Shape{2, 2, 3}));
  EXPECT_EQ(shorter.combiner, Combiner::kMean);
  EXPECT_EQ(shorter.scales, (Buffer<float>{0.5F, 0.0F, 0.0F, 0.5F}));
  const IdBags longer = bags_of(positions_sample(), {.max_sequence_length = 4});
  EXPECT_EQ(ids_of(longer), (Ids{{1, 2}, {}, {3}, {}, {}, {4, 5}, {}, {}}));
  EXPECT_EQ(activation_shape_of(longer), (Shape{2, 4, 3}));
  // An id past the end of its sequence is not checked.
  SparseFeature beyond = positions_sample();
  beyond.values = int64s({1, 2, 999, 4, 5});
  EXPECT_EQ(
      ids_of(bags_of(beyond, {.max_sequence_length = 2})), ids_of(shorter));
}

TEST(IdBagsTest, ASparseSequenceOfRankFourHasItsPositionsInTheThirdDimension) {
  const SparseFeature feature{
      .indices = int64s({0, 1, 0, 2, 0, 1, 1, 0}).view({2, 4}),
      .values = int64s({7, 8}),
      .dense_shape = int64s({1, 2, 2, 3})};
  const IdBags bags = bags_of(feature, {.max_sequence_length = 1});
  EXPECT_EQ(ids_of(bags), (Ids{{}, {7}}));
  EXPECT_EQ(activation_shape_of(bags), (Shape{1, 2, 1, 3}));
}

TEST(IdBagsTest, AnOutputShapeReplacesTheSequenceLength) {
  const FeatureConfig config{
      .max_sequence_length = 1, .output_shape = PartialShape{std::nullopt, 3}};
  const IdBags cells = bags_of(positions_sample(), config);
  EXPECT_EQ(ids_of(cells), (Ids{{1, 2}, {}, {3}, {}, {4, 5}, {}}));
  EXPECT_EQ(activation_shape_of(cells), (Shape{2, 3, 3}));
  const IdBags rows = bags_of(ragged_sample(), config);
  EXPECT_EQ(ids_of(rows), (Ids{{4, 5, 6}, {}, {7}}));
  EXPECT_EQ(activation_shape_of(rows), (Shape{1, 3, 3}));
  EXPECT_EQ(
      bags_of(int64s({1, 2, 3}).view({1, 3}), config).batch_shape,
      (Shape{1, 3}));
}

TEST(IdBagsTest, ARaggedSequenceIsPlacedByOrdinal) {
  EXPECT_EQ(
      ids_of(bags_of(ragged_sample(), {.max_sequence_length = 2})),
      (Ids{{4}, {5}, {}, {}, {7}, {}}));
  const IdBags bags =
      bags_of(ragged_sample(), {.max_sequence_length = 4}, Combiner::kSqrtn);
  EXPECT_EQ(activation_shape_of(bags), (Shape{3, 4, 3}));
  EXPECT_EQ(ids_of(bags)[2], (std::vector<int64_t>{6}));
  EXPECT_TRUE(bags.scales.empty());
}

TEST(IdBagsTest, ANegativeIdLeavesItsPositionInASequenceEmpty) {
  RaggedFeature feature = ragged_sample();
  feature.values = int64s({4, -1, 6, 7});
  EXPECT_EQ(
      ids_of(bags_of(feature, {.max_sequence_length = 3})),
      (Ids{{4}, {}, {6}, {}, {}, {}, {7}, {}, {}}));
}

TEST(IdBagsTest, IgnoresIdsAfterTheEndOfASequence) {
  RaggedFeature ragged = ragged_sample();
  ragged.values = int64s({4, 5, 999, 7});
  EXPECT_EQ(
      ids_of(bags_of(ragged, {.max_sequence_length = 2})),
      (Ids{{4}, {5}, {}, {}, {7}, {}}));
  SparseFeature sparse = sparse_sample();
  sparse.values = int64s({4, -999, 6});
  EXPECT_EQ(
      ids_of(bags_of(
          sparse,
          {.max_sequence_length = 1, .validate_weights_and_indices = false})),
      (Ids{{4}, {}, {6}}));
}

// Ragged features.

TEST(IdBagsTest, ARaggedRowIsABag) {
  const IdBags bags = bags_of(ragged_sample());
  EXPECT_EQ(ids_of(bags), (Ids{{4, 5, 6}, {}, {7}}));
  EXPECT_TRUE(bags.kept.empty());
  EXPECT_EQ(activation_shape_of(bags), (Shape{3, 3}));
}

TEST(IdBagsTest, RaggedRowsOfOneIdHaveNoOffsets) {
  const RaggedFeature one_each{
      .values = int64s({4, 5, 6}), .row_splits = int64s({0, 1, 2, 3})};
  const IdBags bags = bags_of(one_each, {}, Combiner::kMean);
  EXPECT_TRUE(bags.offsets.empty());
  EXPECT_TRUE(bags.scales.empty());
  EXPECT_EQ(ids_of(bags), (Ids{{4}, {5}, {6}}));
  // As many ids as rows, but not one in each row.
  const RaggedFeature uneven{
      .values = int64s({4, 5, 6}), .row_splits = int64s({0, 0, 2, 3})};
  EXPECT_EQ(ids_of(bags_of(uneven)), (Ids{{}, {4, 5}, {6}}));
}

TEST(IdBagsTest, RaggedPartsMayBeInt32AndStrided) {
  const RaggedFeature feature{
      .values = int32s({4, 99, 5, 99}).slice(0, 0, 4, 2),
      .row_splits = int32s({0, 99, 1, 99, 2, 99}).slice(0, 0, 6, 2)};
  EXPECT_EQ(ids_of(bags_of(feature)), (Ids{{4}, {5}}));
}

TEST(IdBagsTest, ARaggedBatchMayBeEmpty) {
  const RaggedFeature none{
      .values = at::empty({0}, at::kLong), .row_splits = int64s({0})};
  EXPECT_EQ(activation_shape_of(bags_of(none)), (Shape{0, 3}));
  EXPECT_EQ(
      activation_shape_of(bags_of(none, {.max_sequence_length = 2})),
      (Shape{0, 2, 3}));
  const RaggedFeature empty_rows{
      .values = at::empty({0}, at::kInt), .row_splits = int64s({0, 0, 0})};
  const IdBags bags = bags_of(empty_rows, {}, Combiner::kMean);
  EXPECT_EQ(ids_of(bags), (Ids{{}, {}}));
  EXPECT_EQ(bags.scales, (Buffer<float>{0.0F, 0.0F}));
}

TEST(IdBagsTest, AnOutputShapeWithAsManyRowsReshapesThem) {
  const RaggedFeature feature{
      .values = int64s({1, 2, 3, 4, 5}), .row_splits = int64s({0, 2, 2, 3, 5})};
  const IdBags bags = bags_of(feature, {.output_shape = Shape{2, 2}});
  EXPECT_EQ(ids_of(bags), (Ids{{1, 2}, {}, {3}, {4, 5}}));
  EXPECT_EQ(activation_shape_of(bags), (Shape{2, 2, 3}));
}

TEST(IdBagsTest, AnOutputShapeWithMoreRowsMakesSequences) {
  const RaggedFeature feature{
      .values = int64s({1, 2, 3, 4, 5, 6}),
      .row_splits = int64s({0, 3, 3, 4, 6})};
  const IdBags bags =
      bags_of(feature, {.output_shape = Shape{2, 4}}, Combiner::kMean);
  EXPECT_EQ(ids_of(bags), (Ids{{1}, {2}, {}, {}, {4}, {}, {5}, {6}}));
  EXPECT_EQ(activation_shape_of(bags), (Shape{2, 4, 3}));
  EXPECT_TRUE(bags.scales.empty());
}

TEST(IdBagsTest, OutputShapeThatFitsIsAcceptedForEveryKind) {
  EXPECT_EQ(
      bags_of(int64s({1, 2}), {.output_shape = Shape{2}}).batch_shape,
      (Shape{2}));
  EXPECT_EQ(
      bags_of(sparse_sample(), {.output_shape = Shape{3}}).batch_shape,
      (Shape{3}));
}

TEST(IdBagsTest, RaggedRowsAreBagsIfADimensionIsUnknown) {
  const auto shape_of = [](PartialShape shape) {
    return bags_of(
               RaggedFeature{int64s({1, 2, 3, 4, 5}), int64s({0, 2, 2, 3, 5})},
               {.output_shape = std::move(shape)})
        .batch_shape;
  };
  EXPECT_EQ(shape_of({std::nullopt}), (Shape{4}));
  EXPECT_EQ(shape_of({std::nullopt, 1}), (Shape{4, 1}));
  EXPECT_EQ(shape_of({std::nullopt, 2}), (Shape{2, 2}));
  EXPECT_EQ(shape_of({std::nullopt, 2, 2}), (Shape{1, 2, 2}));
  EXPECT_EQ(shape_of({2, std::nullopt}), (Shape{2, 2}));
  const RaggedFeature none{
      .values = at::empty({0}, at::kLong), .row_splits = int64s({0})};
  EXPECT_EQ(
      activation_shape_of(
          bags_of(none, {.output_shape = PartialShape{std::nullopt, 2}})),
      (Shape{0, 2, 3}));
}

// Ids and weights that are dropped.

TEST(IdBagsTest, NegativeIdsAreDroppedFromSparseFeatures) {
  SparseFeature feature = sparse_sample();
  feature.values = int64s({-4, 5, -1});
  const IdBags bags = bags_of(feature, {}, Combiner::kMean);
  EXPECT_EQ(ids_of(bags), (Ids{{5}, {}, {}}));
  EXPECT_EQ(positions_of(bags), (Ids{{1}, {}, {}}));
  EXPECT_EQ(bags.scales, (Buffer<float>{1.0F, 0.0F, 0.0F}));
}

TEST(IdBagsTest, NegativeIdsAreDroppedFromRaggedFeatures) {
  RaggedFeature feature = ragged_sample();
  feature.values = int32s({4, -1, 6, -7});
  const IdBags bags = bags_of(feature, {}, Combiner::kMean);
  EXPECT_EQ(ids_of(bags), (Ids{{4, 6}, {}, {}}));
  EXPECT_EQ(positions_of(bags), (Ids{{0, 2}, {}, {}}));
  EXPECT_EQ(bags.scales, (Buffer<float>{0.5F, 0.0F, 0.0F}));
}

TEST(IdBagsTest, NonPositiveWeightsDropTheirIdsUnlessSummed) {
  const at::Tensor weights = floats({2.0F, 0.0F, -1.0F, NAN});
  for (const Combiner combiner : {Combiner::kMean, Combiner::kSqrtn}) {
    const IdBags bags = bags_of(ragged_sample(), {}, combiner, weights);
    EXPECT_EQ(ids_of(bags), (Ids{{4}, {}, {}}));
    EXPECT_EQ(weights_of(bags)[0], (std::vector<float>{2.0F}));
  }
  const IdBags summed = bags_of(ragged_sample(), {}, Combiner::kSum, weights);
  EXPECT_EQ(ids_of(summed), (Ids{{4, 5, 6}, {}, {7}}));
  EXPECT_EQ(summed.weights[2], -1.0F);
  EXPECT_TRUE(std::isnan(summed.weights[3]));
}

// As in safe_embedding_lookup_sparse(), which prunes before it looks up.
TEST(IdBagsTest, IdsDroppedByTheirWeightMayHaveAnyValue) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const at::Tensor weights = floats({2.0F, 0.0F, -1.0F, 1.0F});
  const RaggedFeature in_rows{
      .values = int64s({4, 99, kMax, 7}), .row_splits = int64s({0, 3, 3, 4})};
  const SparseFeature in_cells{
      .indices = int64s({0, 0, 0, 1, 0, 2, 2, 0}).view({4, 2}),
      .values = in_rows.values,
      .dense_shape = int64s({3, 3})};
  for (const Feature& feature : {Feature(in_rows), Feature(in_cells)}) {
    for (const Combiner combiner : {Combiner::kMean, Combiner::kSqrtn}) {
      for (const OutOfRange policy : {OutOfRange::kError, OutOfRange::kZero}) {
        const IdBags bags =
            bags_of(feature, {.out_of_range = policy}, combiner, weights);
        EXPECT_EQ(ids_of(bags), (Ids{{4}, {}, {7}}));
        EXPECT_EQ(bags.zero_rows, 0);
      }
      EXPECT_INDEX_ERROR(
          bags_of(feature, {}, combiner, floats({2.0F, 0.5F, -1.0F, 1.0F})),
          "but got 99 at position 1");
      EXPECT_INDEX_ERROR(
          bags_of(
              feature,
              {.validate_weights_and_indices = false},
              combiner,
              weights),
          "but got 99 at position 1");
    }
    EXPECT_INDEX_ERROR(
        bags_of(feature, {}, Combiner::kSum, weights),
        "but got 99 at position 1");
  }
}

TEST(IdBagsTest, WithoutValidationWeightsStayAsTheyAre) {
  const IdBags bags = bags_of(
      ragged_sample(),
      {.validate_weights_and_indices = false},
      Combiner::kMean,
      floats({2.0F, 0.0F, -1.0F, -4.0F}));
  EXPECT_EQ(ids_of(bags), (Ids{{4, 5, 6}, {}, {7}}));
  EXPECT_EQ(bags.scales, (Buffer<float>{1.0F, 0.0F, -0.25F}));
}

TEST(IdBagsTest, WeightsFollowTheirIdsIntoTheBags) {
  const SparseFeature feature{
      .indices = int64s({2, 0, 0, 2, 0, 0, 2, 1}).view({4, 2}),
      .values = int64s({6, 5, -4, 7}),
      .dense_shape = int64s({3, 3})};
  const IdBags bags =
      bags_of(feature, {}, Combiner::kSum, floats({0.6F, 0.5F, 0.4F, 0.7F}));
  EXPECT_EQ(ids_of(bags), (Ids{{5}, {}, {6, 7}}));
  EXPECT_EQ(
      weights_of(bags),
      (std::vector<std::vector<float>>{{0.5F}, {}, {0.6F, 0.7F}}));
}

TEST(IdBagsTest, IdsOutOfRangeLookUpZerosIfConfigured) {
  const FeatureConfig config{.out_of_range = OutOfRange::kZero};
  EXPECT_EQ(
      ids_of(bags_of(int64s({10, 9, -1}), config)), (Ids{{-1}, {9}, {-1}}));
  RaggedFeature feature = ragged_sample();
  feature.values = int64s({4, 10, -6, int64_t{1} << 40});
  const IdBags bags = bags_of(feature, config, Combiner::kMean);
  EXPECT_EQ(ids_of(bags), (Ids{{4, -1}, {}, {-1}}));
  EXPECT_EQ(bags.zero_rows, 2);
}

TEST(IdBagsTest, DroppedZeroRowsKeepTheirShareOfTheDenominator) {
  RaggedFeature feature = ragged_sample();
  feature.values = int64s({10, 5, 6, 11});
  IdBags bags = bags_of(
      feature,
      {.out_of_range = OutOfRange::kZero},
      Combiner::kMean,
      floats({2.0F, 1.0F, 1.0F, 5.0F}));
  drop_zero_rows(bags);
  EXPECT_EQ(ids_of(bags), (Ids{{5, 6}, {}, {}}));
  EXPECT_EQ(bags.zero_rows, 0);
  EXPECT_EQ(bags.scales, (Buffer<float>{0.25F, 0.0F, 0.2F}));
  EXPECT_EQ(weights_of(bags)[0], (std::vector<float>{1.0F, 1.0F}));
}

TEST(IdBagsTest, DroppingZeroRowsOfADenseFeatureLeavesEmptyBags) {
  IdBags bags =
      bags_of(int64s({10, 3, 12}), {.out_of_range = OutOfRange::kZero});
  drop_zero_rows(bags);
  EXPECT_EQ(ids_of(bags), (Ids{{}, {3}, {}}));
}

TEST(IdBagsTest, ScalesAreTheInverseOfTheDenominator) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(0.1F, 4.0F);
  std::vector<float> weights(500);
  std::vector<int64_t> splits{0};
  for (float& weight : weights) {
    weight = uniform(random);
  }
  while (splits.back() < 500) {
    splits.push_back(std::min<int64_t>(500, splits.back() + random() % 7));
  }
  const RaggedFeature feature{
      .values = at::tensor(std::vector<int64_t>(500, 1), at::kLong),
      .row_splits = at::tensor(splits, at::kLong)};
  const at::Tensor weight_tensor = at::tensor(weights, at::kFloat);
  for (const bool is_weighted : {false, true}) {
    for (const Combiner combiner : {Combiner::kMean, Combiner::kSqrtn}) {
      const IdBags bags = bags_of(
          feature, {}, combiner, is_weighted ? weight_tensor : kNoWeights);
      for (size_t bag = 0; bag + 1 < splits.size(); ++bag) {
        double denominator = 0.0;
        for (int64_t i = splits[bag]; i < splits[bag + 1]; ++i) {
          const double weight = is_weighted ? weights[i] : 1.0;
          denominator += combiner == Combiner::kMean ? weight : weight * weight;
        }
        if (combiner == Combiner::kSqrtn) {
          denominator = std::sqrt(denominator);
        }
        const double expected = denominator == 0.0 ? 0.0 : 1.0 / denominator;
        EXPECT_NEAR(bags.scales[bag], expected, 1e-6 * expected);
      }
    }
  }
  EXPECT_TRUE(bags_of(feature, {}, Combiner::kSum).scales.empty());
}

TEST(IdBagsTest, TheIdsAreACopy) {
  const at::Tensor dense = int64s({1, 2});
  RaggedFeature ragged = ragged_sample();
  const at::Tensor weights = floats({1, 2, 3, 4});
  const IdBags first = bags_of(dense);
  const IdBags second = bags_of(ragged, {}, Combiner::kSum, weights);
  dense.zero_();
  ragged.values.zero_();
  ragged.row_splits.zero_();
  weights.zero_();
  EXPECT_EQ(ids_of(first), (Ids{{1}, {2}}));
  EXPECT_EQ(ids_of(second), (Ids{{4, 5, 6}, {}, {7}}));
  EXPECT_EQ(second.weights, (Buffer<float>{1, 2, 3, 4}));
}

}  // namespace tessera::test::id_bags_test
