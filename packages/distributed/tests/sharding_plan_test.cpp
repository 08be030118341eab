// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/sharding_plan.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/optim/optimizers/adam.h>
#include <tessera/optim/optimizers/sgd.h>

#include "tests/features/feature_builders.h"

namespace tessera::sharding_plan_test {

using Kind = TablePlacement::Kind;

Nest<FeatureConfig> features() {
  return {
      {"user", feature_of("users", 1'000'000, 64)},
      {"country", feature_of("countries", 200, 16)},
      {"tag", feature_of("tags", 50'000, 32)},
      {"odd", feature_of("odd", 3, 512)}};
}

const distributed::ShardingPlan::Table& find(
    const distributed::ShardingPlan& plan,
    const std::string& name) {
  return *std::find_if(
      plan.tables.begin(),
      plan.tables.end(),
      [&](const distributed::ShardingPlan::Table& table) {
        return table.name == name;
      });
}

TEST(ShardingPlanTest, SmallBusyTablesAreDataParallelAndLargeOnesRowWise) {
  const distributed::ShardingPlan plan = distributed::plan_sharding(
      features(),
      optim::Adagrad{},
      {.ranks = 64,
       .batch_size = 4096,
       .bag_lengths = {{"tag", 20.0}},
       .split = RowSplit::kMod});
  EXPECT_EQ(
      find(plan, "users").placement, TablePlacement::row_wise(RowSplit::kMod));
  EXPECT_EQ(find(plan, "countries").placement, TablePlacement::data_parallel());
  EXPECT_EQ(plan.placement().size(), 4);
  EXPECT_EQ(find(plan, "users").bytes, 1'000'000 * 64 * 4 * 2);
}

TEST(ShardingPlanTest, TablesWithKeysAreSplitByWholePartitions) {
  const DynamicKeys keys{.capacity = 1'000'000};
  const Nest<FeatureConfig> users{
      {"user", feature_of({.name = "users", .dim = 16, .keys = keys})}};
  // Copies would send less, but a key table can't be data-parallel.
  const distributed::ShardingPlan plan = distributed::plan_sharding(
      users,
      optim::SGD{},
      {.ranks = 7, .batch_size = 100'000'000, .memory_slack = 100.0});
  EXPECT_EQ(plan.tables[0].placement, TablePlacement::row_wise());
  // A key takes some 20 bytes beside its row.
  EXPECT_GT(plan.tables[0].bytes, int64_t{1'000'000} * (16 * 4 + 15));
  EXPECT_LT(plan.tables[0].bytes, int64_t{1'000'000} * (16 * 4 + 24));
  const auto [smallest, largest] =
      std::minmax_element(plan.rank_bytes.begin(), plan.rank_bytes.end());
  EXPECT_LT(
      static_cast<double>(*largest), 1.05 * static_cast<double>(*smallest));
  // 244 partitions, of which the first rank has 35.
  const double rows = 35 * 4099.0 / 1e6;
  const double distinct = plan.tables[0].distinct_ids;
  EXPECT_NEAR(
      plan.tables[0].bytes_sent,
      6 * rows * distinct * 64 + 6.0 / 7 * distinct * (12 + 64),
      1e-6 * plan.tables[0].bytes_sent);
  EXPECT_VALUE_ERROR(
      distributed::plan_sharding(
          users,
          optim::SGD{},
          {.ranks = 7,
           .placement = {{"users", TablePlacement::data_parallel()}}}),
      "[PlanOptions] table 'users' has keys, so it can't be data-parallel");
}

// The formulas of the header, written out again.
TEST(ShardingPlanTest, BytesSentFollowTheFormula) {
  const distributed::ShardingPlan plan = distributed::plan_sharding(
      features(),
      optim::SGD{},
      {.ranks = 4,
       .batch_size = 1000,
       .bag_lengths = {{"tag", 3.0}},
       .placement = {
           {"tags", TablePlacement::row_wise()},
           {"countries", TablePlacement::data_parallel()},
           {"odd", TablePlacement::row_wise()}}});
  const double distinct =
      50'000.0 * (1.0 - std::pow(1.0 - 1.0 / 50'000.0, 3000.0));
  EXPECT_NEAR(find(plan, "tags").distinct_ids, distinct, 1e-6 * distinct);
  EXPECT_NEAR(
      find(plan, "tags").bytes_sent,
      0.75 * distinct * (4.0 + 8.0 * 32.0),
      1e-6 * distinct * 300.0);
  // Three rows on four ranks: three others request the row of one rank.
  EXPECT_NEAR(
      find(plan, "odd").bytes_sent,
      3.0 / 3.0 * 3.0 * 4.0 * 512.0 + 0.75 * 3.0 * (4.0 + 4.0 * 512.0),
      1.0);
  EXPECT_DOUBLE_EQ(
      find(plan, "countries").bytes_sent, 0.75 * 200.0 * 8.0 * 17.0);
  double sum = 0.0;
  for (const distributed::ShardingPlan::Table& of_table : plan.tables) {
    sum += of_table.bytes_sent;
  }
  EXPECT_DOUBLE_EQ(plan.bytes_sent, sum);
}

TEST(ShardingPlanTest, MemoryStaysWithinTheSlack) {
  for (const int64_t ranks : {1, 2, 3, 8, 64}) {
    for (const double slack : {0.0, 0.05}) {
      const distributed::ShardingPlan plan = distributed::plan_sharding(
          features(),
          optim::Adam{},
          {.ranks = ranks, .batch_size = 100'000, .memory_slack = slack});
      double total = 0.0;
      for (const distributed::ShardingPlan::Table& of_table : plan.tables) {
        total += static_cast<double>(of_table.bytes);
      }
      const auto most = static_cast<double>(
          *std::max_element(plan.rank_bytes.begin(), plan.rank_bytes.end()));
      // Rows are not divisible, and neither are tables of a few rows.
      const double whole_rows =
          (3.0 * 512.0 + 200.0 * 16.0 + 4.0 * 64.0) * 12.0;
      EXPECT_LE(
          most, total / static_cast<double>(ranks) * (1.0 + slack) + whole_rows)
          << ranks << " ranks, slack " << slack;
    }
  }
}

// A rank that serves all others would be the busiest by far.
TEST(ShardingPlanTest, NoTableIsTableWiseUnlessRequested) {
  const auto kinds = [](const distributed::PlanOptions& options) {
    std::map<std::string, Kind> kinds;
    for (const auto& [name, placement] :
         distributed::plan_sharding(features(), optim::SGD{}, options)
             .placement()) {
      kinds[name] = placement.kind;
    }
    return kinds;
  };
  const auto proposed = kinds({.ranks = 512, .memory_slack = 0.0});
  EXPECT_EQ(proposed.at("odd"), Kind::kRowWise);
  EXPECT_EQ(proposed.at("countries"), Kind::kRowWise);
  const auto requested = kinds(
      {.ranks = 512, .placement = {{"odd", TablePlacement::table_wise(7)}}});
  EXPECT_EQ(requested.at("odd"), Kind::kTableWise);
}

TEST(ShardingPlanTest, PrintsEveryTable) {
  const std::string text =
      distributed::plan_sharding(features(), optim::SGD{}, {.ranks = 2})
          .to_string();
  for (const char* word :
       {"users", "1000000", "row-wise (div)", "2 ranks", "sent per step"}) {
    EXPECT_CONTAINS(text, word);
  }
}

TEST(ShardingPlanTest, AcceptsLongPaths) {
  const std::string path(300, 'p');
  const auto configs =
      Nest<FeatureConfig>::map({{path, feature_of("users", 100, 4)}});
  const distributed::ShardingPlan plan = distributed::plan_sharding(
      configs, optim::SGD{}, {.bag_lengths = {{path, 3.0}}});
  EXPECT_EQ(plan.tables.size(), 1U);
}

TEST(ShardingPlanTest, RefusesUnusableOptions) {
  const auto plan = [](const distributed::PlanOptions& options) {
    distributed::plan_sharding(features(), optim::SGD{}, options);
  };
  expect_refusals<distributed::PlanOptions>(
      {{{.ranks = 0},
        "[PlanOptions] ranks must be in [1, 1000000] and batch_size must be >= 1"},
       {{.batch_size = 0}, "and batch_size must be >= 1, but got 1 and 0"},
       {{.ranks = 1'000'001}, "but got 1000001"},
       {{.memory_slack = -0.1}, "memory_slack must be >= 0"},
       {{.memory_slack = std::numeric_limits<double>::quiet_NaN()},
        "memory_slack must be >= 0"},
       {{.bag_lengths = {{"user", -1.0}}},
        "bag_lengths of feature 'user' must be >= 0"},
       {{.bag_lengths = {{"nobody", 1.0}}},
        "bag_lengths names the feature 'nobody', which does not exist"},
       {{.placement = {{"nothing", TablePlacement::row_wise()}}},
        "placement must name tables that a feature uses, but names 'nothing'"},
       {{.ranks = 2, .placement = {{"users", TablePlacement::table_wise(2)}}},
        "[PlanOptions] table 'users' is placed on rank 2"}},
      plan);
  EXPECT_FALSE(distributed::ShardingPlan{}.to_string().empty());
  EXPECT_VALUE_ERROR(
      distributed::plan_sharding(Nest<FeatureConfig>(), optim::SGD{}, {}),
      "[plan_sharding] features must have at least one feature");
}

}  // namespace tessera::sharding_plan_test
