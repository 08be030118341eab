// SPDX-License-Identifier: Apache-2.0
// Ranks with sharded tables publish one version together. The test runs with any number of
// ranks.
#include <tessera/serving/publish_callback.h>
#include <tessera/serving/publisher.h>
#include <tessera/training/fit.h>

#include "packages/distributed/tests/sharded_layers.h"
#include "packages/serving/tests/published_model.h"
#include "src/common/check.h"

namespace tessera::serving::sharded_publisher_test {

// With the placement of the table `movies`.
class ShardedPublisherTest : public ::testing::TestWithParam<TablePlacement> {
 protected:
  // Each rank has other examples.
  void train(uint64_t seed) {
    std::mt19937_64 random(1000 * seed + static_cast<uint64_t>(rank()));
    model_->learn(model_->random_batch(random));
  }

  const Strategy strategy_ = sharded({.placement = {{"movies", GetParam()}}});
  const SharedFolder folder_;
  const std::string directory_ = folder_ / "published";
  std::shared_ptr<PublishedModel> model_ = std::make_shared<PublishedModel>(
      PublishedModelOptions{.strategy = strategy_});
};

TEST_P(ShardedPublisherTest, AReaderGivesTheBitsOfTheRanks) {
  Publisher publisher(model_, directory_, {.full_share = 10.0});
  publisher.publish();
  Reader reader(directory_, {.follow = false});
  for (uint64_t round = 1; round < 5; ++round) {
    expect_same_lookups(*reader.version(), *model_, round);
    train(round);
    EXPECT_EQ(publisher.publish(), static_cast<int64_t>(round) + 1);
    EXPECT_FALSE(publisher.report().is_base);
    EXPECT_TRUE(reader.refresh());
  }
  model_->embedding->evict("users", 1);
  publisher.publish();
  reader.refresh();
  expect_same_lookups(*reader.version(), *model_, 9);
}

TEST_P(ShardedPublisherTest, AnErrorOfRankZeroIsRaisedOnAll) {
  EXPECT_RAISES(
      c10::Error,
      Publisher(model_, "/dev/null/published"),
      "can't make the directory '/dev/null/published'");
  Publisher publisher(model_, directory_, {.background = true});
  publisher.publish();
  publisher.wait();
  EXPECT_EQ(Reader(directory_).version()->number(), 1);
}

// No rank has the vectors of all items.
TEST_P(ShardedPublisherTest, AllRanksComputeTheItems) {
  const at::Tensor ids = at::arange(model_->options.movies, at::kLong);
  bool is_refused = false;
  const auto vectors = [&] {
    EXPECT_FALSE(model_->is_training());
    const auto rows = model_->embedding->forward({{"movie", ids}});
    TESSERA_CHECK_VALUE(!is_refused, "no vectors");
    return rows["movie"];
  };
  Publisher publisher(
      model_,
      directory_,
      {.full_share = 10.0,
       .items = PublishedItems{
           .items = [&] { return RecommenderItems{.vectors = vectors()}; },
           .fold_in = PublishedFoldIn{}}});
  for (uint64_t round = 1; round < 4; ++round) {
    model_->train();
    publisher.publish();
    EXPECT_EQ(publisher.report().is_base, round == 1);
    const Reader reader(directory_, {.follow = false});
    const Version& version = *reader.version();
    const size_t table = version.table("recommend/items");
    const at::Tensor rows = at::empty({ids.size(0), model_->options.dim});
    version.lookup_rows(
        table,
        {ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel())},
        {rows.mutable_data_ptr<float>(), static_cast<size_t>(rows.numel())});
    model_->eval();
    const at::NoGradGuard no_grad;
    EXPECT_TENSOR_EQ(rows, vectors());
    const int64_t changed = version.tables()[table].overlaid_rows;
    EXPECT_EQ(changed > 0, round > 1);
    EXPECT_LT(changed, ids.numel());
    const at::AutoGradMode gradients(true);
    train(round);
  }
  is_refused = is_last();
  EXPECT_RAISES(c10::ValueError, publisher.publish(), "no vectors");
  is_refused = false;
  EXPECT_EQ(publisher.publish(), 4);
}

TEST_P(ShardedPublisherTest, AllRanksKeepTheItemsOfTheSameVersions) {
  const at::Tensor ids = at::arange(model_->options.movies, at::kLong);
  int64_t calls = 0;
  Publisher publisher(
      model_,
      directory_,
      {.full_share = 10.0,
       .items = PublishedItems{
           .items =
               [&] {
                 ++calls;
                 return RecommenderItems{
                     .vectors =
                         model_->embedding->forward({{"movie", ids}})["movie"]};
               },
           .fold_in = PublishedFoldIn{},
           .every = 2}});
  for (uint64_t round = 1; round < 6; ++round) {
    train(round);
    publisher.publish();
    EXPECT_EQ(calls, static_cast<int64_t>(round + 1) / 2);
    const Reader reader(directory_, {.follow = false});
    const Version& version = *reader.version();
    const size_t table = version.table("recommend/items");
    EXPECT_EQ(version.tables()[table].overlaid_rows > 0, round > 2);
    expect_same_lookups(version, *model_, round);
  }
}

// Each rank has a clock of its own, but they publish together.
TEST_P(ShardedPublisherTest, RanksAgreeWhenTheSecondsHavePassed) {
  using namespace training;
  const auto publisher = std::make_shared<Publisher>(model_, directory_);
  const double never = 1e9;
  fit(std::vector<uint64_t>{1, 2, 3},
      [&](uint64_t seed) {
        train(seed);
        return StepResult{.loss = at::zeros({})};
      },
      {.callbacks = {PublishCallback(
           publisher, {.every_seconds = rank() == 0 ? 1e-9 : never})},
       .strategy = strategy_});
  EXPECT_EQ(Reader(directory_).version()->number(), 4);
}

INSTANTIATE_TEST_SUITE_P(
    Placements,
    ShardedPublisherTest,
    ::testing::Values(
        TablePlacement::row_wise(),
        TablePlacement::row_wise(RowSplit::kMod),
        TablePlacement::data_parallel(),
        TablePlacement::table_wise(0)));

}  // namespace tessera::serving::sharded_publisher_test
