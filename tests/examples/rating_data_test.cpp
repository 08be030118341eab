// SPDX-License-Identifier: Apache-2.0

#include "examples/movielens/rating_data.h"
#include "tests/test_files.h"
#include "tests/test_util.h"

namespace rating_data_test {

// The pairs of the user with the other raters of the movie, by their definition.
std::vector<int64_t> pairs_of(
    const MovieLens::Rating& rating,
    const RatingData& data) {
  std::vector<int64_t> pairs;
  for (const MovieLens::Rating& other : data.train()) {
    if (other.movie == rating.movie && other.user != rating.user) {
      pairs.push_back(
          rating.user * std::ssize(data.movielens().users) + other.user);
    }
  }
  return pairs;
}

TEST(RatingDataTest, PairsAreThoseOfTheOtherTrainingRatings) {
  const RatingData data(
      load_movielens(tessera::test::test_file("movielens_tiny")), false);
  for (const Ratings& ratings : {data.train(), data.test()}) {
    std::vector<int64_t> values;
    std::vector<int64_t> splits{0};
    for (const MovieLens::Rating& rating : ratings) {
      const auto pairs = pairs_of(rating, data);
      values.insert(values.end(), pairs.begin(), pairs.end());
      splits.push_back(std::ssize(values));
    }
    ASSERT_FALSE(values.empty());
    const RatingBatch batch = data.batch(ratings);
    const auto& bags =
        std::get<tessera::RaggedFeature>(batch.features["user_pairs"]);
    EXPECT_TRUE(torch::equal(bags.values, torch::tensor(values)));
    EXPECT_TRUE(torch::equal(bags.row_splits, torch::tensor(splits)));
  }
}

}  // namespace rating_data_test
