// SPDX-License-Identifier: Apache-2.0
// What a step returns for metrics beside predictions, labels and weights.
#include <tessera/layers/training/classification_metrics.h>
#include <tessera/layers/training/fit.h>
#include <tessera/layers/training/ranking_metrics.h>

#include "tests/test_util.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tessera::training {
namespace step_metrics_test {

using test::floats;
using test::int64s;

TEST(StepMetricsTest, GroupsReachTheGroupedAUC) {
  const auto pass = make_pass(std::vector<int64_t>{0, 1}, [](int64_t user) {
    return StepResult{
        .loss = at::full({}, 1.0),
        .predictions = floats({0.1F, 0.9F}),
        .labels = int64s({user, 1 - user}),
        .groups = int64s({user, user})};
  });
  // Both also take the batches of a metric without groups.
  const Logs logs = evaluate(
      *pass, {std::make_shared<GroupedAUC>(), std::make_shared<AUC>()});
  EXPECT_EQ(logs["gauc"], 0.5);  // right for user 0, wrong for user 1
  EXPECT_EQ(logs["auc"], 0.5);
  const auto without = make_pass(std::vector<int64_t>{0}, [](int64_t) {
    return StepResult{
        .loss = at::full({}, 1.0),
        .predictions = floats({0.1F}),
        .labels = int64s({1})};
  });
  EXPECT_VALUE_ERROR(
      evaluate(*without, {std::make_shared<GroupedAUC>()}),
      "Return StepResult::groups");
}

TEST(StepMetricsTest, BagsOfLabelsReachTheRankingMetrics) {
  const auto pass = make_pass(std::vector<int64_t>{1, 2}, [](int64_t queries) {
    return StepResult{
        .loss = at::full({}, static_cast<double>(queries)),
        .predictions = int64s({5, 6, 7, 8}).view({2, 2}).slice(0, 0, queries),
        .labels = int64s({6, 9, 1, 7}).slice(0, 0, queries == 1 ? 3 : 4),
        .label_splits = int64s({0, 3, 4}).slice(0, 0, queries + 1)};
  });
  const Logs logs = evaluate(*pass, {std::make_shared<RecallAtK>()});
  EXPECT_DOUBLE_EQ(logs["recall_at_10"], (1.0 / 3.0 + 1.0 / 3.0 + 1.0) / 3.0);
  // The bags, and not the labels, count the examples of a batch.
  EXPECT_DOUBLE_EQ(logs["loss"], (1.0 * 1.0 + 2.0 * 2.0) / 3.0);
  EXPECT_VALUE_ERROR(
      evaluate(*pass, {std::make_shared<AUC>()}), "but got bags of labels");
}

}  // namespace step_metrics_test
}  // namespace tessera::training
