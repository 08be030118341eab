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
#include <type_traits>
#include <vector>

namespace tessera::distributed {

/// What plan_sharding() is to plan for.
struct PlanOptions {
  int64_t ranks = 1;
  /// Of one rank, >= 1.
  int64_t batch_size = 1024;
  /// Expected ids per example of a feature, by its path; 1 for the others.
  std::map<std::string, double> bag_lengths = {};
  /// Of tables that are split.
  RowSplit split = RowSplit::kDiv;
  /// Placements that are not to be changed, by table name.
  std::map<std::string, TablePlacement> placement = {};
  /// By how much of (tables + slots) / ranks a rank may exceed it, >= 0.
  double memory_slack = 0.05;
};
static_assert(std::is_aggregate_v<PlanOptions>);

/// One table of a ShardingPlan.
struct PlannedTable {
  std::string name = {};
  int64_t rows = 0;
  int64_t dim = 0;
  int64_t bytes = 0;  // with its slots
  bool is_updated = true;  // not frozen
  int64_t row_bytes = 0;  // of one row, without slots
  /// Expected distinct ids in one rank's batch, were all ids equally likely.
  double distinct_ids = 0.0;
  /// Expected bytes that the busiest rank sends in one step.
  double bytes_sent = 0.0;
  TablePlacement placement = {};
};

/// A placement of all tables, with what it costs.
struct ShardingPlan {
  std::vector<PlannedTable> tables = {};  // in order of first use
  std::vector<int64_t> rank_bytes = {};  // tables and slots on each rank
  double bytes_sent = 0.0;  // of all tables

  /// For ShardingOptions::placement.
  std::map<std::string, TablePlacement> placement() const;
  /// A readable table.
  std::string to_string() const;
};

/// Proposes where tables go. Of U distinct ids in a rank's batch, V rows of which
/// the first rank has M, and R ranks, the busiest rank sends
///
///   (R - 1) M / V * U * 4 dim               rows that it owns
///     + (R - 1) / R * U * (4 + 4 dim)       ids and gradients
///
/// bytes per step of a split table of float32, and of a replicated one
///
///   (R - 1) / R * V * 8 (dim + 1)           the sum of gradients of all rows
///
/// where a frozen table sends no gradients. Tables with few rows per rank are
/// replicated, those that save most first, as long as memory_slack lasts, and the
/// others are split. No table is placed whole but by PlanOptions::placement: its
/// rank would answer all others.
///
///   const ShardingPlan plan = plan_sharding(features, optimizer, {.ranks = 8});
///   std::cout << plan.to_string();
///   distributed::sharded_strategy(backend, {.placement = plan.placement()});
///
/// Errors:  c10::ValueError for unusable configs or options, naming the table or
///          feature.
ShardingPlan plan_sharding(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    const PlanOptions& options);

}  // namespace tessera::distributed
