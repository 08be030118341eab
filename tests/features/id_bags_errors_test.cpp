// SPDX-License-Identifier: Apache-2.0
#include "src/features/id_bags.h"

#include "tests/features/feature_state.h"
#include "tests/test_util.h"

namespace tessera::test::id_bags_errors_test {

using Shape = std::vector<int64_t>;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

void make(
    const Feature& feature,
    const FeatureConfig& config = {},
    const at::Tensor& weights = {}) {
  make_id_bags(feature_state(config), feature, weights);
}

SparseFeature sparse_sample() {
  return {
      .indices = int64s({0, 0, 0, 2, 2, 0}).view({3, 2}),
      .values = int64s({4, 5, 6}),
      .dense_shape = int64s({3, 3})};
}

RaggedFeature ragged_sample() {
  return {.values = int64s({4, 5, 6, 7}), .row_splits = int64s({0, 3, 3, 4})};
}

void make_sparse(
    const at::Tensor& indices,
    const at::Tensor& values,
    const at::Tensor& dense_shape,
    const FeatureConfig& config = {}) {
  make(SparseFeature{indices, values, dense_shape}, config);
}

void make_ragged(const at::Tensor& row_splits) {
  make(RaggedFeature{int64s({4, 5, 6, 7}), row_splits});
}

TEST(IdBagsErrorsTest, AnIdOutOfRangeIsNamedWithTableAndPosition) {
  EXPECT_INDEX_ERROR(
      make(int64s({1, 2, 10})),
      "[feature 'clicks'] table 'movies' has ids in [0, 10), but got 10 at "
      "position 2. Correct the id, enlarge vocabulary_size, or set "
      "out_of_range = OutOfRange::kZero.");
  RaggedFeature ragged = ragged_sample();
  ragged.values = int32s({4, 12, 6, 7});
  EXPECT_INDEX_ERROR(make(ragged), "but got 12 at position 1");
  SparseFeature sparse = sparse_sample();
  sparse.values = int64s({4, 5, kHuge});
  EXPECT_INDEX_ERROR(make(sparse), "but got 9223372036854775807 at position 2");
  sparse.values = int64s({(int64_t{1} << 32) + 3, 5, 6});
  EXPECT_INDEX_ERROR(make(sparse), "but got 4294967299 at position 0");
}

TEST(IdBagsErrorsTest, RefusesNegativeIdsThatAreNotDropped) {
  EXPECT_INDEX_ERROR(
      make(int64s({1, -2})),
      "[feature 'clicks'] table 'movies' has ids in [0, 10), but got -2 at "
      "position 1");
  RaggedFeature ragged = ragged_sample();
  ragged.values = int64s({4, 5, -6, 7});
  for (const OutOfRange policy : {OutOfRange::kError, OutOfRange::kZero}) {
    EXPECT_INDEX_ERROR(
        make(
            ragged,
            {.validate_weights_and_indices = false, .out_of_range = policy}),
        "but got -6 at position 2. Set validate_weights_and_indices = true to "
        "drop negative ids.");
  }
}

TEST(IdBagsErrorsTest, IdsMustBeIntegers) {
  EXPECT_TYPE_ERROR(
      make(floats({1.0F})),
      "[feature 'clicks'] ids must be int32 or int64, but got Float. Convert "
      "with .to(torch::kLong).");
  EXPECT_TYPE_ERROR(make(at::zeros({2}, at::kBool)), "but got Bool");
  EXPECT_TYPE_ERROR(make(at::zeros({2}, at::kShort)), "but got Short");
  SparseFeature sparse = sparse_sample();
  sparse.values = floats({1, 2, 3});
  EXPECT_TYPE_ERROR(make(sparse), "values must be int32 or int64");
  sparse = sparse_sample();
  sparse.indices = sparse.indices.to(at::kDouble);
  EXPECT_TYPE_ERROR(
      make(sparse), "indices must be int32 or int64, but got Double");
  sparse = sparse_sample();
  sparse.dense_shape = floats({3, 3});
  EXPECT_TYPE_ERROR(make(sparse), "dense_shape must be int32 or int64");
  RaggedFeature ragged = ragged_sample();
  ragged.values = floats({1, 2, 3, 4});
  EXPECT_TYPE_ERROR(make(ragged), "values must be int32 or int64");
  EXPECT_TYPE_ERROR(
      make_ragged(floats({0, 4})), "row_splits must be int32 or int64");
}

TEST(IdBagsErrorsTest, EveryPartMustBeDefined) {
  const at::Tensor none;
  const auto [indices, values, dense_shape] = sparse_sample();
  for (const auto& [feature, part] : std::vector<Refusal<Feature>>{
           {none, "[feature 'clicks'] ids"},
           {SparseFeature{none, values, dense_shape}, "indices"},
           {SparseFeature{indices, none, dense_shape}, "values"},
           {SparseFeature{indices, values, none}, "dense_shape"},
           {RaggedFeature{values, none}, "row_splits"},
           {RaggedFeature{none, int64s({0})}, "values"}}) {
    EXPECT_TYPE_ERROR(
        make(feature), part + " must be a tensor, but is an undefined tensor");
  }
}

TEST(IdBagsErrorsTest, TensorsMustBeDenseOnTheCpu) {
  EXPECT_TYPE_ERROR(
      make(at::empty({2}, at::TensorOptions(at::kLong).device(at::kMeta))),
      "[feature 'clicks'] ids must be a dense tensor on the cpu, but got "
      "Strided on meta");
  EXPECT_TYPE_ERROR(
      make_ragged(int64s({0, 4}).to_sparse()),
      "row_splits must be a dense tensor on the cpu, but got Sparse on cpu");
}

TEST(IdBagsErrorsTest, DenseIdsNeedABatchDimensionAndNoSequence) {
  EXPECT_VALUE_ERROR(
      make(at::zeros({}, at::kLong)),
      "[feature 'clicks'] a dense feature must have rank 1 or above, but got a "
      "scalar");
  EXPECT_VALUE_ERROR(
      make(int64s({1, 2}), {.max_sequence_length = 2}),
      "a sequence feature must be sparse or ragged, but got a dense tensor");
}

TEST(IdBagsErrorsTest, SparsePartsMustFitEachOther) {
  const SparseFeature sparse = sparse_sample();
  expect_refusals<SparseFeature>(
      {{{sparse.indices, int64s({4, 5}), sparse.dense_shape},
        "[feature 'clicks'] indices must have shape [nnz, rank] = [2, 2], but "
        "got [3, 2]."},
       {{sparse.indices, sparse.values, int64s({3, 3, 3})},
        "indices must have shape [nnz, rank] = [3, 3], but got [3, 2]."},
       {{int64s({0, 1, 2}), sparse.values, sparse.dense_shape}, "but got [3]."},
       {{sparse.indices, sparse.values.view({3, 1}), sparse.dense_shape},
        "values must have rank 1, but got shape [3, 1]."},
       {{sparse.indices, sparse.values, sparse.dense_shape.view({1, 2})},
        "dense_shape must have rank 1, but got shape [1, 2]."},
       {{int64s({0}).view({1, 1}), int64s({4}), int64s({3})},
        "a sparse feature must have rank 2 or above, but dense_shape has 1 "
        "entries"}},
      [&](const SparseFeature& x) { make(x); });
}

TEST(IdBagsErrorsTest, SparseIndicesMustLieInsideTheDenseShape) {
  const at::Tensor values = int64s({4});
  expect_refusals<SparseFeature>(
      {{{int64s({0, 3}).view({1, 2}), values, int64s({3, 3})},
        "[feature 'clicks'] indices must lie inside dense_shape, but "
        "indices[0][1] is 3 and dense_shape[1] is 3."},
       {{int64s({-1, 0}).view({1, 2}), values, int64s({3, 3})},
        "indices[0][0] is -1 and dense_shape[0] is 3."},
       {{int64s({0, 0}).view({1, 2}), values, int64s({0, 3})},
        "indices[0][0] is 0 and dense_shape[0] is 0."}},
      [&](const SparseFeature& x) { make(x); });
}

TEST(IdBagsErrorsTest, ADenseShapeMustNotBeNegativeOrOverflow) {
  const at::Tensor indices = int64s({0, 0}).view({1, 2});
  const at::Tensor values = int64s({4});
  expect_refusals<at::Tensor>(
      {{int64s({3, -1}),
        "the entries of dense_shape must be >= 0, and their product must fit in 64 "
        "bits, but entry 1 is -1."},
       {int64s({kHuge, 2}), "product must fit in 64 bits, but entry 1 is 2."},
       {int64s({kHuge, 1}), "a batch must have fewer than 2^32 - 1 bags"}},
      [&](const at::Tensor& x) { make_sparse(indices, values, x); });
}

TEST(IdBagsErrorsTest, ASequenceMustNotOverflow) {
  // 2^61 rows of length 8 are 2^64 positions, which would overflow to 0.
  const at::Tensor indices = int64s({5, 0}).view({1, 2});
  const at::Tensor shape = int64s({int64_t{1} << 61, 1});
  EXPECT_VALUE_ERROR(
      make_sparse(indices, int64s({4}), shape, {.max_sequence_length = 8}),
      "a batch must have fewer than 2^32 - 1 bags");
  EXPECT_VALUE_ERROR(
      make(
          RaggedFeature{int64s({4, 5}), int64s({0, 1, 1, 1, 2})},
          {.max_sequence_length = int64_t{1} << 62}),
      "a batch must have fewer than 2^32 - 1 bags");
  EXPECT_VALUE_ERROR(
      make(
          RaggedFeature{int64s({4}), int64s({0, 1})},
          {.output_shape = Shape{int64_t{1} << 32, int64_t{1} << 32}}),
      "a batch must have fewer than 2^32 - 1 bags");
}

TEST(IdBagsErrorsTest, EveryRowSplitIsChecked) {
  expect_refusals<at::Tensor>(
      {{int64s({0, 3, 2, 4}),
        "[feature 'clicks'] row_splits must not decrease, but entry 2 is 2, and the "
        "entry before it is 3."},
       {int64s({0, 9, 4}),
        "must not decrease, but entry 2 is 4, and the entry before it is 9"},
       {int64s({1, 2, 4}), "row_splits must begin with 0, but begins with 1."},
       {int64s({0, 5}),
        "row_splits must end with the number of values, 4, but ends with 5."},
       {int64s({0, 3}), "the number of values, 4, but ends with 3."},
       {int64s({0}), "4, but ends with 0."},
       {at::empty({0}, at::kLong),
        "row_splits must have one entry more than the batch has rows, but is "
        "empty"},
       {int64s({0, 4}).view({1, 2}),
        "row_splits must have rank 1, but got shape [1, 2]."}},
      [&](const at::Tensor& x) { make_ragged(x); });
  EXPECT_VALUE_ERROR(
      make(RaggedFeature{int64s({1, 2}).view({2, 1}), int64s({0, 2})}),
      "values must have rank 1, but got shape [2, 1].");
}

TEST(IdBagsErrorsTest, OutputShapeMustFitTheBatch) {
  using Case = std::pair<Feature, PartialShape>;
  const Feature dense = int64s({1, 2, 3});
  const Feature ragged = ragged_sample();
  expect_refusals<Case>(
      {{{dense, {4}},
        "[feature 'clicks'] inconsistent shape: the output shape is set to [4] "
        "(by output_shape, build() or the first batch), but this batch gives "
        "[3]."},
       {{sparse_sample(), {3, 1}},
        "is set to [3, 1] (by output_shape, build() or the first batch), but "
        "this batch gives [3]."},
       {{ragged, {4}},
        "the product of output_shape must be a multiple of the number of rows "
        "of the batch, but got [4] for 3 rows."},
       {{ragged, {2}}, "but got [2] for 3"},
       {{ragged, {std::nullopt, 2}},
        "the output shape is set to [?, 2] (by output_shape, build() or the "
        "first batch), but this batch has 3 rows."},
       {{ragged, {std::nullopt, std::nullopt}},
        "the output shape of a ragged feature may have at most one unknown "
        "dimension, but got [?, ?]."},
       {{dense, {std::nullopt, 3}},
        "is set to [?, 3] (by output_shape, build() or the first batch), but "
        "this batch gives [3]."}},
      [](const Case& x) { make(x.first, {.output_shape = x.second}); });
}

TEST(IdBagsErrorsTest, RowsSpreadByOutputShapeTakeNoWeights) {
  EXPECT_VALUE_ERROR(
      make(
          ragged_sample(), {.output_shape = Shape{3, 2}}, floats({1, 1, 1, 1})),
      "[feature 'clicks'] weights are given, but output_shape [3, 2] makes each "
      "of the 3 rows a sequence, and the ids of a sequence are not combined");
}

at::Tensor flat(
    const Feature& feature,
    const std::optional<Feature>& weights,
    const FeatureConfig& config = {}) {
  return flat_weights(feature_state(config), feature, weights);
}

TEST(FlatWeightsTest, AbsentWeightsAreAnUndefinedTensor) {
  EXPECT_FALSE(flat(ragged_sample(), std::nullopt).defined());
  EXPECT_FALSE(flat(int64s({1}), std::nullopt).defined());
}

TEST(FlatWeightsTest, AcceptsFlatValuesOrTheKindOfTheFeature) {
  const at::Tensor weights = floats({1, 2, 3, 4});
  EXPECT_TRUE(flat(ragged_sample(), weights).is_same(weights));
  const RaggedFeature ragged{weights, int32s({0, 3, 3, 4})};
  EXPECT_TRUE(flat(ragged_sample(), ragged).is_same(weights));
  SparseFeature sparse = sparse_sample();
  sparse.values = floats({1, 2, 3});
  EXPECT_TRUE(flat(sparse_sample(), sparse).is_same(sparse.values));
}

TEST(FlatWeightsTest, ConvertsOtherFloatsAndKeepsTheGradient) {
  const at::Tensor weights = at::ones({4}, at::kDouble).requires_grad_(true);
  const at::Tensor converted = flat(ragged_sample(), weights);
  EXPECT_EQ(converted.scalar_type(), at::kFloat);
  EXPECT_TRUE(converted.requires_grad());
  EXPECT_TENSOR_EQ(
      flat(ragged_sample(), at::ones({4}, at::kHalf)),
      at::ones({4}, at::kFloat));
}

TEST(FlatWeightsTest, RefusesWeightsIfNothingIsCombined) {
  EXPECT_VALUE_ERROR(
      flat(int64s({1}), floats({1})),
      "[feature 'clicks'] weights are given, but the feature is dense");
  EXPECT_VALUE_ERROR(
      flat(ragged_sample(), floats({1, 2, 3, 4}), {.max_sequence_length = 2}),
      "[feature 'clicks'] weights are given, but this is a sequence feature");
}

TEST(FlatWeightsTest, RefusesWeightsOfAnotherKind) {
  EXPECT_TYPE_ERROR(
      flat(sparse_sample(), RaggedFeature{floats({1}), int64s({0, 1})}),
      "[feature 'clicks'] weights must be sparse like the feature, or a tensor of "
      "one value per id, but are ragged.");
  EXPECT_TYPE_ERROR(
      flat(ragged_sample(), sparse_sample()),
      "weights must be ragged like the feature, or a tensor of one value per id, "
      "but are sparse.");
}

TEST(FlatWeightsTest, RefusesWeightsAtOtherPositions) {
  EXPECT_VALUE_ERROR(
      flat(
          ragged_sample(),
          RaggedFeature{floats({1, 2, 3, 4}), int64s({0, 2, 3, 4})}),
      "[feature 'clicks'] weights must have the same row_splits as the feature, "
      "but they differ.");
  SparseFeature sparse = sparse_sample();
  sparse.values = floats({1, 2, 3});
  sparse.indices = int64s({0, 0, 0, 1, 2, 0}).view({3, 2});
  EXPECT_VALUE_ERROR(
      flat(sparse_sample(), sparse),
      "weights must have the same indices and dense_shape as the feature");
  sparse.indices = sparse_sample().indices;
  sparse.dense_shape = int64s({3, 4});
  EXPECT_VALUE_ERROR(flat(sparse_sample(), sparse), "but they differ");
  sparse.dense_shape = at::Tensor();
  EXPECT_VALUE_ERROR(flat(sparse_sample(), sparse), "but they differ");
}

TEST(FlatWeightsTest, RefusesWeightsOfAnotherLengthShapeOrDtype) {
  EXPECT_VALUE_ERROR(
      flat(ragged_sample(), floats({1, 2, 3})),
      "[feature 'clicks'] weights must have one value per id, so shape [4], but "
      "got shape [3].");
  EXPECT_VALUE_ERROR(
      flat(ragged_sample(), floats({1, 2, 3, 4}).view({2, 2})),
      "but got shape [2, 2].");
  EXPECT_TYPE_ERROR(
      flat(ragged_sample(), int64s({1, 2, 3, 4})),
      "[feature 'clicks'] weights must be of a floating-point type, but got Long.");
  EXPECT_TYPE_ERROR(
      flat(ragged_sample(), at::Tensor()),
      "[feature 'clicks'] weights must be a tensor, but is an undefined tensor.");
}

}  // namespace tessera::test::id_bags_errors_test
