// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/sharding_plan.h>

#include <tessera/common/shorten.h>

#include "optim/row_update.h"
#include "packages/distributed/src/partition.h"
#include "src/common/check.h"
#include "src/common/text.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

namespace tessera::distributed {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kMaxRanks = 1'000'000;
// A request has a row's number, or a key and its number of occurrences.
constexpr int64_t kRowIdBytes = sizeof(uint32_t);
constexpr int64_t kKeyBytes = sizeof(int64_t) + sizeof(uint32_t);

void validate(const PlanOptions& options) {
  TESSERA_CHECK_VALUE(
      options.ranks >= 1 && options.ranks <= kMaxRanks &&
          options.batch_size >= 1,
      "[PlanOptions] ranks must be in [1, 1000000] and batch_size must be >= 1, but got {} and {}. Correct the options.",
      options.ranks,
      options.batch_size);
  TESSERA_CHECK_VALUE(
      options.memory_slack >= 0.0,
      "[PlanOptions] memory_slack must be >= 0, but got {}. Correct the option.",
      options.memory_slack);
  for (const auto& [feature, length] : options.bag_lengths) {
    TESSERA_CHECK_VALUE(
        length >= 0.0 && std::isfinite(length),
        "[PlanOptions] bag_lengths of feature '{}' must be >= 0 and finite, but got {}. Set it to the expected number of ids.",
        shorten(feature),
        length);
  }
}

int64_t bytes_of(const TableState& table) {
  const TableConfig& config = *table.config;
  int64_t row =
      config.dim * static_cast<int64_t>(c10::elementSize(config.dtype));
  if (table.optimizer) {
    for (const optim::SlotSpec& slot : optim::slots_of(*table.optimizer)) {
      row += static_cast<int64_t>(
                 c10::elementSize(slot_dtype_of(config, slot.is_per_row))) *
          (slot.is_per_row ? 1 : config.dim);
    }
  }
  const int64_t rows = config.max_rows() * row;
  if (!config.keys) {
    return rows;
  }
  const KeyIndex of_one_partition(
      *config.keys, table.name, /*random_key=*/0, {.begin = 0, .end = 1});
  return rows +
      of_one_partition.bytes_at_capacity() *
      of_one_partition.partitions().count();
}

// The rows of the largest shard.
int64_t rows_of_largest_shard(
    const TableConfig& table,
    const TablePlacement& placement,
    int64_t ranks) {
  if (placement.kind == TablePlacement::Kind::kTableWise) {
    return table.max_rows();
  }
  if (!table.keys) {
    return (table.max_rows() + ranks - 1) / ranks;
  }
  const KeyPartitions partitions(table.keys->capacity);
  return std::min(
      table.max_rows(),
      (partitions.count() + ranks - 1) / ranks * partitions.max_rows());
}

// The expected number of distinct values in `ids` draws from `rows` values.
double expected_distinct(double rows, double ids) {
  return -rows * std::expm1(ids * std::log1p(-1.0 / std::max(rows, 1.0)));
}

class Planner {
 public:
  Planner(const EmbeddingState& state, const PlanOptions& options)
      : state_(state), options_(options) {
    const std::vector<double> ids = count_ids();
    for (size_t i = 0; i < state.tables.size(); ++i) {
      const TableState& table = state.tables[i];
      const TableConfig& config = *table.config;
      const auto rows = static_cast<double>(config.max_rows());
      plan_.tables.push_back(
          {.name = table.name,
           .rows = config.max_rows(),
           .dim = config.dim,
           .bytes = bytes_of(table),
           .is_updated = config.trainable && table.optimizer.has_value(),
           .row_bytes = config.dim *
               static_cast<int64_t>(c10::elementSize(config.dtype)),
           .id_bytes = config.keys ? kKeyBytes : kRowIdBytes,
           .distinct_ids =
               config.max_rows() == 1 ? 1.0 : expected_distinct(rows, ids[i]),
           .placement = TablePlacement::row_wise(options.split)});
    }
    plan_.rank_bytes.resize(options.ranks, 0);
  }

  ShardingPlan plan() {
    std::set<size_t> unplaced = place_by_options();
    place_data_parallel(unplaced);
    for (const size_t i : unplaced) {
      place(i);
    }
    for (size_t i = 0; i < plan_.tables.size(); ++i) {
      ShardingPlan::Table& table = plan_.tables[i];
      table.bytes_sent =
          table.placement.kind == TablePlacement::Kind::kDataParallel
          ? bytes_if_data_parallel(table)
          : bytes_if_sharded(i);
      plan_.bytes_sent += table.bytes_sent;
    }
    return std::move(plan_);
  }

 private:
  // The expected number of ids in one rank's batch for each table.
  std::vector<double> count_ids() const {
    std::vector<double> ids(state_.tables.size(), 0.0);
    std::set<std::string> known;
    for (const FeatureState& feature : state_.features) {
      const auto found = options_.bag_lengths.find(feature.path);
      const double length =
          found == options_.bag_lengths.end() ? 1.0 : found->second;
      ids[feature.table] += static_cast<double>(options_.batch_size) * length;
      known.insert(feature.path);
    }
    for (const auto& [path, length] : options_.bag_lengths) {
      TESSERA_CHECK_VALUE(
          known.contains(path),
          "[PlanOptions] bag_lengths names the feature '{}', which does not exist. Known: {}. Correct the name.",
          shorten(path),
          shorten_all({known.begin(), known.end()}));
    }
    return ids;
  }

  // Places the tables of PlanOptions::placement. Returns the other tables.
  std::set<size_t> place_by_options() {
    check_placement_names(state_, options_.placement, "[PlanOptions]");
    const ShardingOptions sharding{.placement = options_.placement};
    std::set<size_t> unplaced;
    for (size_t i = 0; i < plan_.tables.size(); ++i) {
      ShardingPlan::Table& table = plan_.tables[i];
      if (!sharding.placement.contains(table.name)) {
        unplaced.insert(i);
        continue;
      }
      table.placement = placement_of(
          table.name,
          *state_.tables[i].config,
          sharding,
          options_.ranks,
          "[PlanOptions]");
      place(i);
    }
    return unplaced;
  }

  // Makes tables data-parallel, those with the largest benefit per byte of memory first. A
  // table that does not fit into the rest of memory_slack is skipped.
  void place_data_parallel(std::set<size_t>& unplaced) {
    if (options_.ranks == 1) {
      return;
    }
    int64_t total = 0;
    for (const ShardingPlan::Table& table : plan_.tables) {
      total += table.bytes;
    }
    const auto ranks = static_cast<double>(options_.ranks);
    double slack = options_.memory_slack * static_cast<double>(total) / ranks;
    std::vector<size_t> order;
    std::ranges::copy_if(unplaced, std::back_inserter(order), [&](size_t i) {
      return !state_.tables[i].config->keys;
    });
    const auto benefit = [&](size_t i) {
      const ShardingPlan::Table& table = plan_.tables[i];
      return (bytes_if_sharded(i) - bytes_if_data_parallel(table)) /
          static_cast<double>(table.bytes);
    };
    std::ranges::stable_sort(order, std::greater<>(), benefit);
    for (const size_t i : order) {
      ShardingPlan::Table& table = plan_.tables[i];
      const double extra_bytes =
          static_cast<double>(table.bytes) * (ranks - 1.0) / ranks;
      if (benefit(i) > 0.0 && extra_bytes <= slack) {
        slack -= extra_bytes;
        table.placement = TablePlacement::data_parallel();
        place(i);
        unplaced.erase(i);
      }
    }
  }

  void place(size_t index) {
    const ShardingPlan::Table& table = plan_.tables[index];
    const Partition partition(
        table.placement, *state_.tables[index].config, options_.ranks);
    for (int64_t rank = 0; rank < options_.ranks; ++rank) {
      plan_.rank_bytes[rank] +=
          table.bytes / table.rows * partition.rows_of(rank).count;
    }
  }

  double remote_share() const {
    const auto ranks = static_cast<double>(options_.ranks);
    return (ranks - 1.0) / ranks;
  }
  // The bytes that the rank with the most rows sends.
  double bytes_if_sharded(size_t index) const {
    const ShardingPlan::Table& table = plan_.tables[index];
    const int64_t max_rows = rows_of_largest_shard(
        *state_.tables[index].config, table.placement, options_.ranks);
    const auto rows = static_cast<double>(table.rows);
    const double served = static_cast<double>(options_.ranks - 1) *
        static_cast<double>(max_rows) / rows * table.distinct_ids;
    const double requested = remote_share() * table.distinct_ids;
    const int64_t gradient = table.is_updated ? kFloatBytes * table.dim : 0;
    return served * static_cast<double>(table.row_bytes) +
        requested * static_cast<double>(table.id_bytes + gradient);
  }
  double bytes_if_data_parallel(const ShardingPlan::Table& table) const {
    return !table.is_updated ? 0.0
                             : remote_share() *
            static_cast<double>(table.rows * 2 * kFloatBytes * (table.dim + 1));
  }

  const EmbeddingState& state_;
  const PlanOptions& options_;
  ShardingPlan plan_;
};

// Has more digits than megabytes(), because a rank may send little.
std::string sent(double bytes) {
  return fmt::format("{:.2f} MiB", bytes / (1 << 20));
}

}  // namespace

std::map<std::string, TablePlacement> ShardingPlan::placement() const {
  std::map<std::string, TablePlacement> placement;
  for (const ShardingPlan::Table& table : tables) {
    placement.emplace(table.name, table.placement);
  }
  return placement;
}

std::string ShardingPlan::to_string() const {
  std::vector<std::vector<std::string>> lines{
      {"table",
       "rows",
       "dim",
       "memory",
       "distinct ids",
       "sent per step",
       "placement"}};
  for (const ShardingPlan::Table& table : tables) {
    lines.push_back(
        {table.name,
         std::to_string(table.rows),
         std::to_string(table.dim),
         megabytes(table.bytes),
         fmt::format("{:.0f}", table.distinct_ids),
         sent(table.bytes_sent),
         tessera::to_string(table.placement)});
  }
  std::string text = align(lines);
  if (rank_bytes.empty()) {
    return text;
  }
  const auto [smallest, largest] = std::ranges::minmax_element(rank_bytes);
  text += fmt::format(
      "{} ranks, {} to {} each; a rank sends {} per step\n",
      rank_bytes.size(),
      megabytes(*smallest),
      megabytes(*largest),
      sent(bytes_sent));
  return text;
}

ShardingPlan plan_sharding(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    const PlanOptions& options) {
  validate(options);
  const EmbeddingState state =
      describe_state(features, optimizer, "[plan_sharding]");
  return Planner(state, options).plan();
}

}  // namespace tessera::distributed
