// SPDX-License-Identifier: Apache-2.0
// The splits and metrics of the leaderboard. With the environment variable
// TESSERA_QUALITY_DATA, a folder with the public files, their sizes are compared with the
// published ones.

#include "examples/leaderboard/interactions.h"
#include "examples/leaderboard/new_item_ranking.h"
#include "examples/sasrec/histories.h"
#include "tests/test_util.h"

namespace quality_data_test {

namespace fs = std::filesystem;
using tessera::test::int64s;

TEST(NewItemRankingTest, MatchesValuesByHand) {
  NewItemRankingSum sum;
  sum.add({5, 1, 9, 2}, {3, 5, 9});
  EXPECT_NEAR(sum.mean().recall, 2.0 / 3.0, 1e-12);
  const double best = 1.0 + 1.0 / std::log2(3.0) + 0.5;
  EXPECT_NEAR(sum.mean().ndcg, (1.0 + 0.5) / best, 1e-12);
  sum.add({8, 7}, {6});  // no hit
  EXPECT_NEAR(sum.mean().recall, 1.0 / 3.0, 1e-12);
  EXPECT_NEAR(sum.mean().ndcg, 0.75 / best, 1e-12);
}

// A perfect order has at most 20 hits, but recall counts all test items.
TEST(NewItemRankingTest, CountsMoreThanTwentyTestItems) {
  std::vector<int64_t> test(40);
  std::iota(test.begin(), test.end(), 0);
  NewItemRankingSum sum;
  sum.add({test.begin(), test.begin() + 20}, test);
  EXPECT_NEAR(sum.mean().recall, 0.5, 1e-12);
  EXPECT_NEAR(sum.mean().ndcg, 1.0, 1e-12);
}

TEST(InteractionsTest, ValidationIsATenthOfEachUsersItems) {
  std::vector<int64_t> many(25);
  std::iota(many.begin(), many.end(), 0);
  const Interactions data = with_validation(
      {.num_items = 30, .train = {many, {3, 4, 5}}, .test = {{29}, {28}}});
  EXPECT_EQ(data.train[0].size(), 23U);
  // compare_recommenders.py takes the same items.
  EXPECT_EQ(data.test[0], (std::vector<int64_t>{22, 18}));
  EXPECT_EQ(data.train[1].size(), 3U);
  EXPECT_TRUE(data.test[1].empty());
  std::vector<int64_t> all = data.train[0];
  all.insert(all.end(), data.test[0].begin(), data.test[0].end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, many);
}

// The last two items are held out. Each item before them but the first is a target once.
TEST(HistoriesTest, LongHistoriesAreCutIntoWindows) {
  const Histories histories(
      {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 2}, {7, 8, 9}, {4, 5, 6, 7}},
      10,
      3,
      /*windows=*/true);
  const auto& windows = histories.train_windows();
  ASSERT_EQ(windows.size(), 4U);  // three of the first user, one of the last
  const auto [sequences, targets] = histories.batch(windows);
  EXPECT_TENSOR_EQ(sequences.values, int64s({4, 5, 6, 1, 2, 3, 0, 4}));
  EXPECT_TENSOR_EQ(sequences.row_splits, int64s({0, 3, 6, 7, 8}));
  EXPECT_TENSOR_EQ(targets, int64s({5, 6, 7, 2, 3, 4, 1, 5}));
}

TEST(HistoriesTest, WithoutWindowsTheLatestItemsAreOneSequence) {
  const Histories histories({{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}, 10, 3, false);
  const auto [sequences, targets] = histories.batch(histories.train_windows());
  EXPECT_TENSOR_EQ(sequences.values, int64s({4, 5, 6}));
  EXPECT_TENSOR_EQ(targets, int64s({5, 6, 7}));
}

class PublicDataTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("TESSERA_QUALITY_DATA");
    if (folder == nullptr) {
      GTEST_SKIP() << "TESSERA_QUALITY_DATA is not set";
    }
    folder_ = folder;
  }

  // The file, or its compressed form.
  std::string file(const std::string& name) const {
    const fs::path plain = folder_ / name;
    return fs::exists(plain) ? plain.string() : plain.string() + ".gz";
  }

 private:
  fs::path folder_;
};

TEST_F(PublicDataTest, SequencesHaveThePublishedSizes) {
  struct Sizes {
    const char* name;
    size_t users;
    int64_t items, interactions;
  };
  for (const auto& [name, users, items, interactions] :
       {Sizes{"Beauty", 22363, 12101, 198502},
        Sizes{"Sports_and_Outdoors", 35598, 18357, 296337},
        Sizes{"Toys_and_Games", 19412, 11924, 167597},
        Sizes{"Yelp", 30431, 20033, 316354},
        Sizes{"LastFM", 1090, 3646, 52551}}) {
    const Histories data =
        load_histories(file(std::string(name) + ".txt"), 50, true);
    EXPECT_EQ(data.users(), users) << name;
    EXPECT_EQ(data.num_items(), items) << name;
    // The last item of each user is no part of what is seen before the test.
    const int64_t seen = data.seen(HeldOut::kTest).values.size(0);
    EXPECT_EQ(seen + static_cast<int64_t>(users), interactions) << name;
  }
}

TEST_F(PublicDataTest, GowallaHasThePublishedSizes) {
  const Interactions data =
      load_interactions(file("gowalla_train.txt"), file("gowalla_test.txt"));
  EXPECT_EQ(data.num_users(), 29858);
  EXPECT_EQ(data.num_items, 40981);
  const auto count = [](const std::vector<std::vector<int64_t>>& items) {
    size_t sum = 0;
    for (const auto& own : items) {
      sum += own.size();
    }
    return sum;
  };
  EXPECT_EQ(count(data.train), 810128U);
  EXPECT_EQ(count(data.test), 217242U);
}

}  // namespace quality_data_test
