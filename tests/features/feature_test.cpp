// SPDX-License-Identifier: Apache-2.0
#include <tessera/features/feature.h>

#include "tests/test_util.h"

namespace tessera::test::feature_test {

TEST(SparseFeatureTest, FromCooGivesIndicesByRow) {
  const at::Tensor indices = int64s({0, 2, 1, 0}).view({2, 2});
  const SparseFeature feature = SparseFeature::from_coo(
      at::sparse_coo_tensor(indices, int64s({7, 9}), {3, 4}));
  EXPECT_TENSOR_EQ(feature.indices, int64s({0, 1, 2, 0}).view({2, 2}));
  EXPECT_TENSOR_EQ(feature.values, int64s({7, 9}));
  EXPECT_TENSOR_EQ(feature.dense_shape, int64s({3, 4}));
}

TEST(SparseFeatureTest, FromCooKeepsDuplicatesOfAnUncoalescedTensorApart) {
  const at::Tensor indices = int64s({0, 0, 1, 1}).view({2, 2});
  const SparseFeature feature = SparseFeature::from_coo(
      at::sparse_coo_tensor(indices, int64s({7, 9}), {1, 2}));
  EXPECT_TENSOR_EQ(feature.values, int64s({7, 9}));
  EXPECT_TENSOR_EQ(feature.indices, int64s({0, 1, 0, 1}).view({2, 2}));
}

TEST(SparseFeatureTest, FromCooKeepsTheDtypeOfTheIds) {
  const SparseFeature feature = SparseFeature::from_coo(
      at::sparse_coo_tensor(int64s({0, 0}).view({2, 1}), int32s({5}), {1, 1}));
  EXPECT_EQ(feature.values.scalar_type(), at::kInt);
}

TEST(SparseFeatureTest, FromCooTakesAnyRankAndNoEntries) {
  const SparseFeature feature = SparseFeature::from_coo(at::sparse_coo_tensor(
      at::empty({3, 0}, at::kLong), at::empty({0}, at::kLong), {2, 3, 4}));
  EXPECT_EQ(feature.indices.sizes(), (c10::IntArrayRef{0, 3}));
  EXPECT_EQ(feature.values.numel(), 0);
  EXPECT_TENSOR_EQ(feature.dense_shape, int64s({2, 3, 4}));
}

TEST(SparseFeatureTest, FromCooRefusesOtherLayouts) {
  EXPECT_TYPE_ERROR(
      SparseFeature::from_coo(int64s({1, 2})),
      "[SparseFeature::from_coo] expected a tensor of sparse COO layout, but got "
      "layout Strided");
  EXPECT_TYPE_ERROR(SparseFeature::from_coo(at::Tensor()), "got no tensor");
}

TEST(RaggedFeatureTest, FromLengthsAddsUpTheRowSplitsAndSharesTheValues) {
  const auto expect = [](const at::Tensor& values,
                         const at::Tensor& lengths,
                         const at::Tensor& row_splits) {
    const auto feature = RaggedFeature::from_lengths(values, lengths);
    EXPECT_TRUE(feature.values.is_same(values));
    EXPECT_TENSOR_EQ(feature.row_splits, row_splits);
  };
  expect(int32s({5, 6, 7}), int64s({2, 0, 1}), int64s({0, 2, 2, 3}));
  expect(int64s({5}), int32s({1, 0}), int64s({0, 1, 1}));
  expect(int64s({}), int64s({}), int64s({0}));
}

TEST(RaggedFeatureTest, FromLengthsRefusesBadLengths) {
  EXPECT_VALUE_ERROR(
      RaggedFeature::from_lengths(int64s({5}), int64s({2, -1})),
      "[RaggedFeature::from_lengths] lengths must be >= 0, but the smallest is "
      "-1.");
  EXPECT_TYPE_ERROR(
      RaggedFeature::from_lengths(int64s({5}), floats({1.0F})),
      "lengths must be an int32 or int64 tensor, but got Float");
  EXPECT_TYPE_ERROR(
      RaggedFeature::from_lengths(int64s({5}), at::Tensor()),
      "lengths must be an int32 or int64 tensor, but got no tensor");
  EXPECT_VALUE_ERROR(
      RaggedFeature::from_lengths(int64s({5}), at::ones({1, 1}, at::kLong)),
      "lengths must have rank 1, but got shape [1, 1]");
}

TEST(RaggedFeatureTest, FromOffsetsAppendsTheNumberOfValues) {
  const auto splits_of = [](const at::Tensor& values,
                            const at::Tensor& offsets) {
    return RaggedFeature::from_offsets(values, offsets).row_splits;
  };
  EXPECT_TENSOR_EQ(
      splits_of(int64s({5, 6, 7}), int64s({0, 2, 2})), int64s({0, 2, 2, 3}));
  EXPECT_TENSOR_EQ(splits_of(int64s({5}), int32s({0})), int64s({0, 1}));
  EXPECT_TENSOR_EQ(splits_of(int64s({}), int64s({})), int64s({0}));
}

TEST(RaggedFeatureTest, FromOffsetsRefusesBadOffsets) {
  EXPECT_VALUE_ERROR(
      RaggedFeature::from_offsets(int64s({5, 6}), int64s({})),
      "[RaggedFeature::from_offsets] offsets must have the start of each bag, "
      "but is empty, and there are 2 values");
  EXPECT_TYPE_ERROR(
      RaggedFeature::from_offsets(int64s({5}), floats({0.0F})),
      "offsets must be an int32 or int64 tensor, but got Float");
  EXPECT_VALUE_ERROR(
      RaggedFeature::from_offsets(int64s({5}), at::ones({1, 1}, at::kLong)),
      "offsets must have rank 1, but got shape [1, 1]");
  EXPECT_TYPE_ERROR(
      RaggedFeature::from_offsets(at::Tensor(), int64s({0})),
      "values must be a tensor, but got no tensor");
}

}  // namespace tessera::test::feature_test
