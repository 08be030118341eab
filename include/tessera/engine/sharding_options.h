// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <type_traits>

namespace tessera {

/// Which rank holds which rows of a table of V rows. With R ranks:
///
///   kDiv   ranges of V / R rows in order; the first V % R ranks have one more
///   kMod   row i belongs to rank i % R
///
/// kMod spreads a vocabulary that is sorted by frequency evenly; kDiv keeps
/// neighbours together, and its checkpoints can be increments.
enum class RowSplit { kDiv, kMod };

/// "div" or "mod".
std::string to_string(RowSplit split);

/// Where the rows of one table live.
struct TablePlacement {
  enum class Kind {
    /// The rows are split over all ranks.
    kRowWise,
    /// Each rank has all rows. A lookup needs no other rank; an update sends a gradient
    /// of the whole table, which suits small tables.
    kDataParallel,
    /// All rows are on `rank`.
    kTableWise
  };

  Kind kind = Kind::kRowWise;
  RowSplit split = RowSplit::kDiv;
  int64_t rank = 0;

  static TablePlacement row_wise(RowSplit split = RowSplit::kDiv) {
    return {.kind = Kind::kRowWise, .split = split};
  }
  static TablePlacement data_parallel() {
    return {.kind = Kind::kDataParallel};
  }
  static TablePlacement table_wise(int64_t rank) {
    return {.kind = Kind::kTableWise, .rank = rank};
  }

  bool operator==(const TablePlacement&) const = default;
};
static_assert(std::is_aggregate_v<TablePlacement>);

/// "row-wise (div)", "row-wise (mod)", "data-parallel" or "table-wise on rank 2".
std::string to_string(const TablePlacement& placement);

/// How distributed::sharded_strategy() spreads tables over ranks. The same on all of them.
struct ShardingOptions {
  /// By table name; plan_sharding() proposes some. A table that is not in it is
  /// split by rows.
  std::map<std::string, TablePlacement> placement = {};
  /// Of tables without a placement.
  RowSplit split = RowSplit::kDiv;
  /// What the rows of float32 tables travel as: kFloat, or kBFloat16 for half
  /// the bytes, rounded to the nearest. Rows of 16-bit tables travel as they are;
  /// ids always as 32 bits.
  at::ScalarType row_transport = at::kFloat;
  /// What gradients travel as, each rank's sum per row: kFloat or kBFloat16.
  at::ScalarType gradient_transport = at::kFloat;
  /// As Strategy::Engine::lookup_threads. Layers of one backend share a thread for
  /// their lookups; the first of them decides.
  int64_t lookup_threads = 0;
  /// Where the backend wants its tensors: kCPU for MPI. A GPU, for NCCL, has not
  /// been tried.
  at::Device device = at::kCPU;

  bool operator==(const ShardingOptions&) const = default;
};
static_assert(std::is_aggregate_v<ShardingOptions>);

}  // namespace tessera
