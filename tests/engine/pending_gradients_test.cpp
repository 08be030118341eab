// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/sgd.h>

#include "src/engine/pending_gradients.h"

#include "src/features/batch.h"
#include "tests/test_util.h"

#include <list>

namespace tessera::test::pending_gradients_test {

constexpr int64_t kDim = 3;

class PendingGradientsTest : public testing::Test {
 protected:
  PendingGradientsTest()
      : features_(FeatureConfig{
            .table = make_table(
                {.name = "t",
                 .vocabulary_size = 1000,
                 .dim = kDim,
                 .initializer = initializers::Zeros{}})}),
        state_(std::make_shared<EmbeddingState>(make_state(
            features_,
            optim::SGD{.learning_rate = 1.0},
            /*seed=*/0,
            WithSlots::kYes))),
        store_(std::make_shared<TableStore>(state_)),
        pending_(store_, at::zeros({1})) {}

  LookupGradients lookup(const at::Tensor& ids, float gradient) {
    batches_.push_back(
        read_batch(features_, state_->features, Feature(ids), {}));
    return {
        .bags = &batches_.back().bags,
        .gradients = {at::full({ids.size(0), kDim}, gradient)}};
  }

  Nest<FeatureConfig> features_;
  std::shared_ptr<EmbeddingState> state_;
  std::shared_ptr<TableStore> store_;
  PendingGradients pending_;
  std::list<Batch> batches_;
};

TEST_F(PendingGradientsTest, AnAccumulatorHasOneSumPerTouchedRow) {
  std::vector<GradientAccumulator> accumulators(1);
  for (int pass = 1; pass <= 50; ++pass) {
    std::string non_finite;
    accumulators = store_->accumulate(
        accumulators, {lookup(int64s({7, 900, 7, 3}), 1.0F)}, non_finite);
    EXPECT_EQ(accumulators[0].passes(), pass);
    EXPECT_EQ(accumulators[0].sums().size(), 3 * kDim);
  }
}

TEST(GradientAccumulatorTest, ScalesEverySum) {
  constexpr size_t kRows = 100001;
  RowGradients gradients;
  gradients.rows.assign(kRows, 0);
  gradients.sums.assign(kRows, 3.0F);
  GradientAccumulator accumulator(std::move(gradients), /*dim=*/1, 1);
  accumulator.scale(0.5F);
  EXPECT_EQ(accumulator.sums(), Buffer<float>(kRows, 1.5F));
}

TEST_F(PendingGradientsTest, StepsOnceWithTheSumOfAllPasses) {
  pending_.add({lookup(int64s({7, 7}), 1.0F), lookup(int64s({8}), 2.0F)});
  pending_.add({lookup(int64s({7}), 0.5F)});
  EXPECT_EQ(pending_.passes(), 2);
  pending_.prepare(0.5);
  pending_.apply();
  const at::Tensor rows = state_->tables[0].parameters;
  expect_close(rows[7], at::full({kDim}, -1.25F));
  expect_close(rows[8], at::full({kDim}, -1.0F));
  EXPECT_EQ(state_->passes, 1);
  EXPECT_EQ(pending_.passes(), 0);
  pending_.prepare(1.0);
  pending_.apply();
  EXPECT_EQ(state_->passes, 1);
}

TEST_F(PendingGradientsTest, ComputesNormsAndScales) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(pending_.norm(2.0), 0.0);
  pending_.add({lookup(int64s({7, 7, 8}), -2.0F)});
  // The sums are -4 in row 7 and -2 in row 8, in three columns each.
  EXPECT_DOUBLE_EQ(pending_.norm(2.0), std::sqrt(3 * 16.0 + 3 * 4.0));
  EXPECT_DOUBLE_EQ(pending_.norm(1.0), 18.0);
  EXPECT_DOUBLE_EQ(pending_.norm(kInfinity), 4.0);
  pending_.scale(0.5);
  EXPECT_DOUBLE_EQ(pending_.norm(kInfinity), 2.0);
  pending_.add({lookup(int64s({9}), std::nanf(""))});
  EXPECT_TRUE(std::isnan(pending_.norm(2.0)));
  EXPECT_TRUE(std::isnan(pending_.norm(kInfinity)));
  pending_.discard();
  EXPECT_EQ(pending_.norm(kInfinity), 0.0);
}

TEST_F(PendingGradientsTest, AreClaimedByOneCallerAtATime) {
  EXPECT_FALSE(pending_.is_claimed());
  auto claim = pending_.claim();
  EXPECT_TRUE(pending_.is_claimed());
  EXPECT_TORCH_ERROR(pending_.claim(), "belongs to another Combined already");
  claim.reset();
  EXPECT_FALSE(pending_.is_claimed());
  pending_.claim();
}

}  // namespace tessera::test::pending_gradients_test
