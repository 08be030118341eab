// SPDX-License-Identifier: Apache-2.0
#include "src/features/batch_plan.h"

#include "tests/features/feature_builders.h"
#include "tests/features/feature_state.h"

namespace tessera::test::batch_plan_test {

void expect_equal(const IdBags& actual, const IdBags& expected) {
  EXPECT_EQ(actual.ids, expected.ids);
  EXPECT_EQ(actual.offsets, expected.offsets);
  EXPECT_EQ(actual.weights, expected.weights);
  EXPECT_EQ(actual.scales, expected.scales);
  EXPECT_EQ(actual.kept, expected.kept);
  EXPECT_EQ(actual.combiner, expected.combiner);
  EXPECT_EQ(actual.bags, expected.bags);
  EXPECT_EQ(actual.zero_rows, expected.zero_rows);
  EXPECT_EQ(actual.batch_shape, expected.batch_shape);
  EXPECT_EQ(actual.dim, expected.dim);
  EXPECT_EQ(actual.ragged_rows, expected.ragged_rows);
}

// A reader of two features, "clicks" and "likes", of a table with 10 rows.
class BatchPlanTest : public testing::Test {
 protected:
  explicit BatchPlanTest(
      const FeatureConfig& config = {},
      Combiner combiner = Combiner::kMean) {
    states_ = {feature_state(config, combiner), feature_state({}, combiner)};
    structure_ = {{"clicks", states_[0].config}, {"likes", states_[1].config}};
  }

  Batch read_slowly(const Features& features, const Weights& weights = {}) {
    return read_batch(structure_, states_, features, weights);
  }

  void plan(const Features& features, const Weights& weights = {}) {
    reader_.plan(
        structure_, states_, features, weights, read_slowly(features, weights));
  }

  bool can_read(const Features& features, const Weights& weights = {}) {
    Batch batch;
    return reader_.read(features, weights, batch);
  }

  // Reads the batch by the plan and expects what read_batch() reads.
  void expect_planned(const Features& features) {
    Batch batch;
    ASSERT_TRUE(reader_.read(features, {}, batch));
    const Batch expected = read_slowly(features);
    ASSERT_EQ(batch.bags.size(), expected.bags.size());
    ASSERT_EQ(batch.weights.size(), expected.weights.size());
    for (size_t i = 0; i < batch.bags.size(); ++i) {
      expect_equal(batch.bags[i], expected.bags[i]);
      EXPECT_FALSE(batch.weights[i].defined());
    }
    batch.spare->give_back(std::move(batch.bags));
  }

  std::vector<FeatureState> states_;
  Nest<FeatureConfig> structure_;
  PlannedReader reader_;
};

TEST_F(BatchPlanTest, ReadsNothingBeforeAPlan) {
  EXPECT_FALSE(can_read({{"clicks", int64s({1})}, {"likes", int64s({2})}}));
}

TEST_F(BatchPlanTest, ReadsOtherIdsOfTheSameStructure) {
  plan({{"clicks", int64s({1, 2})}, {"likes", ragged({{3}, {4, 5}})}});
  expect_planned(
      {{"clicks", int64s({9, 0})}, {"likes", ragged({{6}, {7, 8}})}});
}

TEST_F(BatchPlanTest, BagsOfRaggedFeaturesMayHaveOtherLengths) {
  const at::Tensor ids = int64s({1, 2});
  plan({{"clicks", ids}, {"likes", ragged({{3}, {4, 5}})}});
  expect_planned({{"clicks", ids}, {"likes", ragged({{1, 2, 3}, {4, 5}})}});
  expect_planned({{"clicks", ids}, {"likes", ragged({{1}, {2}})}});
  expect_planned({{"clicks", ids}, {"likes", ragged({{}, {}})}});
  expect_planned({{"clicks", ids}, {"likes", ragged({{}, {7, 7}})}});
}

TEST_F(BatchPlanTest, ReadsTheKeysInTheOrderOfThePlannedBatch) {
  plan({{"likes", int64s({1, 2})}, {"clicks", int64s({3})}});
  expect_planned({{"likes", int64s({4, 5})}, {"clicks", int64s({6})}});
  EXPECT_FALSE(can_read({{"clicks", int64s({6})}, {"likes", int64s({4, 5})}}));
}

TEST_F(BatchPlanTest, ReadsLists) {
  structure_ = Nest<FeatureConfig>::list(
      {states_[0].config, Nest<FeatureConfig>{{"a", states_[1].config}}});
  const auto features = [](const at::Tensor& first, const at::Tensor& second) {
    return Features::list({first, Features{{"a", second}}});
  };
  plan(features(int64s({1}), int64s({2, 3})));
  expect_planned(features(int64s({4}), int64s({5, 6})));
  EXPECT_FALSE(can_read(Features::list({int64s({4})})));
  EXPECT_FALSE(can_read(Features::list({int64s({4}), int64s({5, 6})})));
}

TEST_F(BatchPlanTest, LeavesAnotherStructureToReadBatch) {
  const at::Tensor ids = int64s({1, 2});
  plan({{"clicks", ids}, {"likes", ragged({{3}, {4}})}});
  const RaggedFeature likes = ragged({{5}, {6}});
  expect_planned({{"clicks", ids}, {"likes", likes}});
  EXPECT_FALSE(can_read({{"clicks", int64s({1})}, {"likes", likes}}));
  EXPECT_FALSE(can_read({{"clicks", ids.view({2, 1})}, {"likes", likes}}));
  EXPECT_FALSE(can_read({{"clicks", int32s({1, 2})}, {"likes", likes}}));
  EXPECT_FALSE(can_read({{"clicks", floats({1, 2})}, {"likes", likes}}));
  EXPECT_FALSE(can_read({{"clicks", at::Tensor()}, {"likes", likes}}));
  EXPECT_FALSE(can_read({{"clicks", likes}, {"likes", likes}}));
  EXPECT_FALSE(can_read({{"clicks", ids}, {"likes", ids}}));
  EXPECT_FALSE(can_read({{"clicks", ids}}));
  EXPECT_FALSE(can_read({{"clicks", ids}, {"like", likes}}));
  EXPECT_FALSE(can_read(ids));
  EXPECT_FALSE(can_read({{"clicks", ids}, {"likes", ragged({{5}})}}));
  EXPECT_FALSE(can_read(
      {{"clicks", ids},
       {"likes",
        RaggedFeature{
            .values = likes.values,
            .row_splits = likes.row_splits.to(at::kInt)}}}));
  const at::Tensor strided = at::arange(4, at::kLong).slice(0, 0, 4, 2);
  EXPECT_FALSE(can_read({{"clicks", strided}, {"likes", likes}}));
  EXPECT_FALSE(can_read({{"clicks", ids._neg_view()}, {"likes", likes}}));
}

TEST_F(BatchPlanTest, LeavesWeightsToReadBatch) {
  const Features features{
      {"clicks", int64s({1, 2})}, {"likes", ragged({{3}, {4}})}};
  const Weights weights{{"likes", floats({1, 2})}};
  plan(features, weights);
  EXPECT_FALSE(can_read(features));
  plan(features);
  EXPECT_TRUE(can_read(features));
  EXPECT_FALSE(can_read(features, weights));
  EXPECT_FALSE(can_read(features, Weights::list({})));
}

TEST_F(BatchPlanTest, LeavesInvalidValuesToReadBatch) {
  const at::Tensor ids = int64s({1, 2});
  const RaggedFeature likes = ragged({{3}, {4}});
  plan({{"clicks", ids}, {"likes", likes}});
  EXPECT_FALSE(can_read({{"clicks", int64s({1, 10})}, {"likes", likes}}));
  EXPECT_FALSE(can_read({{"clicks", int64s({-1, 1})}, {"likes", likes}}));
  EXPECT_FALSE(can_read({{"clicks", ids}, {"likes", ragged({{3}, {-4}})}}));
  const auto with_splits = [&](const at::Tensor& row_splits) {
    return Features{
        {"clicks", ids},
        {"likes",
         RaggedFeature{.values = int64s({3, 4}), .row_splits = row_splits}}};
  };
  EXPECT_TRUE(can_read(with_splits(int64s({0, 0, 2}))));
  EXPECT_FALSE(can_read(with_splits(int64s({1, 1, 2}))));
  EXPECT_FALSE(can_read(with_splits(int64s({0, 3, 2}))));
  EXPECT_FALSE(can_read(with_splits(int64s({0, 1, 3}))));
  EXPECT_FALSE(can_read(with_splits(int64s({0, 1, 1}))));
}

TEST_F(BatchPlanTest, MakesNoPlanForSparseFeaturesSequencesAndManyIds) {
  const at::Tensor ids = int64s({1, 2});
  const SparseFeature sparse{
      .indices = int64s({0, 0, 1, 0}).view({2, 2}),
      .values = ids,
      .dense_shape = int64s({2, 1})};
  const Features with_sparse{{"clicks", ids}, {"likes", sparse}};
  plan(with_sparse);
  EXPECT_FALSE(can_read(with_sparse));
  const Features many{{"clicks", at::zeros({5000}, at::kLong)}, {"likes", ids}};
  plan(many);
  EXPECT_FALSE(can_read(many));
  for (const FeatureConfig& config :
       {FeatureConfig{.max_sequence_length = 1},
        FeatureConfig{.output_shape = std::vector<int64_t>{2}},
        FeatureConfig{.output_shape = std::vector<int64_t>{4}}}) {
    states_[0] = feature_state(config);
    const Features features{{"clicks", ragged({{1}, {2}})}, {"likes", ids}};
    plan(features);
    EXPECT_FALSE(can_read(features));
  }
}

TEST_F(BatchPlanTest, ForgetsThePlan) {
  const Features features{{"clicks", int64s({1})}, {"likes", int64s({2})}};
  plan(features);
  EXPECT_TRUE(can_read(features));
  reader_.forget_plan();
  EXPECT_FALSE(can_read(features));
}

TEST_F(BatchPlanTest, AgreesWithReadBatchOnRandomBatches) {
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    states_ = {feature_state({}, combiner), feature_state({}, combiner)};
    const auto draw = [] {
      const at::Tensor lengths = at::randint(0, 4, {5}, at::kLong);
      const int64_t nnz = lengths.sum().item<int64_t>();
      return Features{
          {"clicks", at::randint(0, 10, {5, 3}, at::kInt)},
          {"likes",
           RaggedFeature::from_lengths(
               at::randint(0, 10, {nnz}, at::kLong), lengths)}};
    };
    plan(draw());
    for (int i = 0; i < 20; ++i) {
      expect_planned(draw());
    }
  }
}

TEST_F(BatchPlanTest, UsesTheMemoryOfBagsThatWereGivenBack) {
  const Features features{{"clicks", int64s({1})}, {"likes", int64s({2})}};
  plan(features);
  Batch first;
  ASSERT_TRUE(reader_.read(features, {}, first));
  const uint32_t* memory = first.bags[0].ids.data();
  Batch second;
  ASSERT_TRUE(reader_.read(features, {}, second));
  EXPECT_NE(second.bags[0].ids.data(), memory);
  first.spare->give_back(std::move(first.bags));
  Batch third;
  ASSERT_TRUE(reader_.read(features, {}, third));
  EXPECT_EQ(third.bags[0].ids.data(), memory);
}

}  // namespace tessera::test::batch_plan_test
