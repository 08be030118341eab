// SPDX-License-Identifier: Apache-2.0
#include "examples/common/item_scorers.h"
#include "examples/leaderboard/tables.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

namespace {

ItemScores constant(const at::Tensor& scores) {
  return [=](const tessera::RaggedFeature& /*histories*/) {
    return scores.clone();
  };
}

// The values with the mean 0 and the variance 1.
std::vector<double> standard(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double mean = 0.0;
  for (const double value : values) {
    mean += value / count;
  }
  double variance = 0.0;
  for (const double value : values) {
    variance += std::pow(value - mean, 2) / count;
  }
  std::vector<double> result;
  for (const double value : values) {
    result.push_back((value - mean) / std::sqrt(variance));
  }
  return result;
}

TEST(MixedScoresTest, AddsScoresOfEqualScale) {
  const auto mixed = mixed_scores(
      constant(torch::tensor({{1.0F, 2.0F, 6.0F}, {5.0F, 5.0F, 5.0F}})),
      constant(torch::tensor({{300.0F, 0.0F, 900.0F}, {0.0F, 1.0F, 5.0F}})),
      0.25)({});
  const auto first = standard({1.0, 2.0, 6.0});
  const auto second = standard({300.0, 0.0, 900.0});
  const auto alone = standard({0.0, 1.0, 5.0});
  for (int64_t item = 0; item < 3; ++item) {
    EXPECT_NEAR(
        mixed[0][item].item<double>(), first[item] + 0.25 * second[item], 1e-6);
    // Scores that are all equal add nothing.
    EXPECT_NEAR(mixed[1][item].item<double>(), 0.25 * alone[item], 1e-6);
  }
}

Result result_of(const char* model, int64_t dim, int64_t seed, double value) {
  return {
      .data = "Beauty",
      .model = model,
      .seed = seed,
      .settings = {{"dim", dim}},
      .validation = value};
}

TEST(TriesTextTest, HasTheMedianAndTheBestOfAllSettings) {
  Result mixture = result_of("mixture", 64, 0, 0.5);
  mixture.tries = {
      {{"weight", 0.1}, {"validation", 0.5}},
      {{"weight", 0.2}, {"validation", 0.3}}};
  Result other = mixture;  // the same weights with another model
  other.settings = {{"dim", 32}};
  other.tries[0]["validation"] = 0.1;
  other.tries[1]["validation"] = 0.2;
  const std::vector<Result> all{
      result_of("SASRec", 64, 0, 0.2),
      result_of("SASRec", 64, 1, 0.4),
      result_of("SASRec", 32, 0, 0.1),
      result_of("SASRec", 16, 0, 0.6),
      result_of("EASE", 1, 0, 0.1),  // is not shown
      result_of("EASE", 2, 0, 0.2),
      result_of("popularity", 1, 0, 0.0),
      mixture,
      other};
  EXPECT_EQ(
      tries_text({all[0], all[6], mixture}, all),
      "\nSettings tried, by their value on validation items:\n\n"
      "- SASRec: 3 settings, 0.3000 in the median, 0.6000 at best\n"
      "- mixture: 4 settings, 0.2500 in the median, 0.5000 at best\n");
  EXPECT_EQ(tries_text({all[6]}, all), "");
}

}  // namespace
