// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/sharding_options.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::distributed {

/// The options of plan_sharding().
struct PlanOptions {
  int64_t ranks = 1;
  /// The batch size of one rank, >= 1.
  int64_t batch_size = 1024;
  /// The expected number of ids per example, by the path of a feature. Default: 1.
  std::map<std::string, double> bag_lengths = {};
  /// How rows of row-wise tables are split.
  RowSplit split = RowSplit::kDiv;
  /// Placements that the plan must keep, by table name.
  std::map<std::string, TablePlacement> placement = {};
  /// A rank may hold (1 + memory_slack) times its even share of tables and slots, where
  /// memory_slack >= 0.
  double memory_slack = 0.05;
};

/// A placement of all tables and its costs.
struct ShardingPlan {
  /// One table, its placement and its costs.
  struct Table {
    std::string name = {};
    int64_t rows = 0;
    int64_t dim = 0;
    int64_t bytes = 0;  // including its slots and keys, if all rows are in use
    bool is_updated = true;  // false: frozen
    int64_t row_bytes = 0;  // of one row, without slots
    int64_t id_bytes = 0;  // of one distinct id in a request
    /// The expected number of distinct ids in one rank's batch if all ids are equally
    /// likely.
    double distinct_ids = 0.0;
    /// The expected bytes that the busiest rank sends in one step.
    double bytes_sent = 0.0;
    TablePlacement placement = {};
  };

  std::vector<Table> tables = {};  // in order of first use
  std::vector<int64_t> rank_bytes = {};  // tables and slots on each rank
  double bytes_sent = 0.0;  // of all tables

  /// The value for ShardingOptions::placement.
  std::map<std::string, TablePlacement> placement() const;
  /// The plan as a readable text table.
  std::string to_string() const;
};

// snippet: tests/docs/reference_engine_test.cpp ShardingPlan
/// Proposes a placement for each table. Let R be the number of ranks, V the rows of a
/// float32 table, M the rows of its largest shard, and U the distinct ids in a rank's
/// batch. For a row-wise table the busiest rank sends this many bytes per step:
///
///   (R - 1) M / V * U * 4 dim               rows that it owns
///     + (R - 1) / R * U * (4 + 4 dim)       ids and gradients
///
/// For a data-parallel table it sends
///
///   (R - 1) / R * V * 8 (dim + 1)           the sum of gradients of all rows
///
/// A frozen table sends no gradients. For a key table, V is the capacity, M has the
/// rows of whole partitions of keys, and an id takes 12 bytes instead of 4.
///
/// A table without keys becomes data-parallel if that sends fewer bytes and memory_slack
/// permits it. Tables with the largest saving per byte of memory come first. All other
/// tables are row-wise. No table is table-wise unless PlanOptions::placement says so,
/// because one rank would then send its rows to all ranks.
///
///   const ShardingPlan plan = plan_sharding(features, optimizer, {.ranks = 8});
///   std::cout << plan.to_string();
///   const ShardingOptions options{.placement = plan.placement()};
///
/// Errors:  c10::ValueError for unusable configs or options, naming the table or
///          feature.
ShardingPlan plan_sharding(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    const PlanOptions& options);

}  // namespace tessera::distributed
