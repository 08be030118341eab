// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/sampling_probability.h>

#include "tests/test_util.h"

namespace tessera::test::sampling_probability_test {

TEST(SamplingProbabilityTest, AveragesGapsAsThePaperDoes) {
  SamplingProbability estimate(
      SamplingProbabilityOptions{.num_buckets = 1000, .learning_rate = 0.5});
  // Id 3 is at positions 1, 2 and 6. Its gaps are 1, 1 and 4, with a moving
  // average of 2.5. Id 5 is at 3, 4 and 5. Its gaps are 3, 1 and 1, with a moving
  // average of 1.5.
  expect_close(estimate->forward(int64s({3, 3})), floats({1.0F, 1.0F}));
  expect_close(
      estimate->forward(int32s({5, 5, 5, 3})),
      floats({1 / 1.5F, 1 / 1.5F, 1 / 1.5F, 1 / 2.5F}));
}

TEST(SamplingProbabilityTest, EstimatesTheSharesOfAStream) {
  SamplingProbability estimate(
      SamplingProbabilityOptions{.num_buckets = 4096, .learning_rate = 0.005});
  const at::Tensor shares = floats({0.5F, 0.25F, 0.125F, 0.1F, 0.025F});
  for (int step = 0; step < 200; ++step) {
    estimate->forward(shares.multinomial(500, true));
  }
  estimate->eval();
  expect_close(estimate->forward(at::arange(5)), shares, 0.25);
}

TEST(SamplingProbabilityTest, MoreHashesTellIdsApart) {
  // 50 rare ids and a frequent one share 16 buckets. With one hash, some rare ids
  // share the bucket of the frequent one.
  const auto max_of_rare_ids = [](int64_t num_hashes) {
    SamplingProbability estimate(SamplingProbabilityOptions{
        .num_buckets = 16, .num_hashes = num_hashes, .learning_rate = 0.05});
    at::Tensor shares = at::ones({51}) * 0.004;
    shares[0] = 0.8;
    for (int step = 0; step < 100; ++step) {
      estimate->forward(shares.multinomial(200, true));
    }
    estimate->eval();
    return estimate->forward(at::arange(1, 51)).max().item<float>();
  };
  EXPECT_GT(max_of_rare_ids(1), 0.5F);
  EXPECT_LT(max_of_rare_ids(6), 0.2F);
}

TEST(SamplingProbabilityTest, EvalLearnsNothing) {
  SamplingProbability estimate(SamplingProbabilityOptions{.num_buckets = 100});
  estimate->forward(int64s({1, 1, 1}));
  estimate->eval();
  expect_close(estimate->forward(int64s({2})), floats({0.25F}));
  expect_close(estimate->forward(int64s({2, 1})), floats({0.25F, 1.0F}));
  EXPECT_EQ(estimate->forward(at::zeros({0}, at::kLong)).size(0), 0);
}

TEST(SamplingProbabilityTest, SavesAndClonesItsState) {
  const SamplingProbabilityOptions options{.num_buckets = 100};
  SamplingProbability estimate(options);
  estimate->forward(int64s({4, 9, 4, 4, 6}));
  std::stringstream file;
  torch::save(estimate, file);
  const auto copy =
      std::dynamic_pointer_cast<SamplingProbabilityImpl>(estimate->clone());
  SamplingProbability loaded(options);
  torch::load(loaded, file);
  const at::Tensor ids = int64s({4, 6, 1});
  const at::Tensor expected = estimate->forward(ids);
  EXPECT_TRUE(at::equal(loaded->forward(ids), expected));
  EXPECT_TRUE(at::equal(copy->forward(ids), expected));
  estimate->reset();
  expect_close(estimate->forward(int64s({4})), floats({1.0F}));
}

TEST(SamplingProbabilityTest, RefusesWrongInput) {
  SamplingProbability estimate(SamplingProbabilityOptions{.num_buckets = 100});
  EXPECT_VALUE_ERROR(estimate->forward({}), "but got an undefined tensor");
  EXPECT_VALUE_ERROR(
      estimate->forward(int64s({1}).view({1, 1})), "must have shape [batch]");
  EXPECT_TYPE_ERROR(estimate->forward(floats({1})), "must be int32 or int64");
  // The largest and smallest int64 are valid ids.
  const at::Tensor probability = estimate->forward(int64s(
      {std::numeric_limits<int64_t>::max(),
       std::numeric_limits<int64_t>::min()}));
  EXPECT_TRUE((probability > 0).all().item<bool>());
}

TEST(SamplingProbabilityTest, RefusesBuffersOfOtherOptions) {
  SamplingProbability estimate(SamplingProbabilityOptions{.num_buckets = 100});
  SamplingProbability other(SamplingProbabilityOptions{.num_buckets = 200});
  copy_by_archive(estimate, other);
  EXPECT_VALUE_ERROR(
      other->forward(int64s({1})),
      "but got last_position: Long of shape [3, 100]");
  estimate->to(at::kDouble);
  EXPECT_VALUE_ERROR(
      estimate->forward(int64s({1})),
      "do not convert the layer to another dtype or device");
}

TEST(SamplingProbabilityTest, RefusesWrongOptions) {
  const auto make = [](SamplingProbabilityOptions options) {
    SamplingProbability estimate(options);
  };
  EXPECT_VALUE_ERROR(make({.num_buckets = 0}), "must be >= 1");
  EXPECT_VALUE_ERROR(make({.num_hashes = 0}), "must be >= 1");
  EXPECT_VALUE_ERROR(
      make({.num_buckets = std::numeric_limits<int64_t>::max()}),
      "at most 2^40");
  for (const double rate : {0.0, 1.5, std::nan("")}) {
    EXPECT_VALUE_ERROR(make({.learning_rate = rate}), "must be in (0, 1]");
  }
}

}  // namespace tessera::test::sampling_probability_test
