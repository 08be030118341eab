// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <type_traits>

namespace tessera {

/// How the V rows of a table are split over R ranks:
///
///   kDiv   ranges of V / R rows in order; the first V % R ranks have one row more
///   kMod   row i belongs to rank i % R
///
/// If a vocabulary is sorted by frequency, kMod spreads the frequent rows evenly over the
/// ranks. kDiv keeps neighbouring rows together, and its checkpoints can be incremental. A
/// key table is split into ranges of its partitions of keys in either case.
enum class RowSplit { kDiv, kMod };

/// "div" or "mod".
std::string to_string(RowSplit split);

/// Where the rows of one table live.
struct TablePlacement {
  enum class Kind {
    /// The rows are split over all ranks.
    kRowWise,
    /// Each rank has all rows. A lookup needs no other rank, but each update sends a
    /// gradient of the whole table, so this suits small tables. Tables with
    /// TableConfig::keys can't be placed this way.
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

// snippet: tests/docs/sharded.cpp ShardingOptions
/// How distributed::sharded_strategy() spreads tables over ranks. All ranks must use the
/// same options.
///
///   const ShardingOptions options{
///       .placement =
///           {{"users", TablePlacement::row_wise(RowSplit::kMod)},
///            {"movies", TablePlacement::data_parallel()}},
///       .gradient_transport = at::kBFloat16};
///   const auto strategy = distributed::sharded_strategy(backend, options);
struct ShardingOptions {
  /// The placement of each table, by its name. plan_sharding() proposes one. A table
  /// without an entry is split by rows.
  std::map<std::string, TablePlacement> placement = {};
  /// How tables without an entry in `placement` are split.
  RowSplit split = RowSplit::kDiv;
  /// The dtype in which rows of float32 tables are sent: kFloat, or kBFloat16, which
  /// rounds to the nearest value and halves the bytes. Rows of 16-bit tables are sent
  /// unchanged, and ids always have 32 bits, or 96 with TableConfig::keys.
  at::ScalarType row_transport = at::kFloat;
  /// The dtype in which each rank sends its sum of gradients per row: kFloat or
  /// kBFloat16.
  at::ScalarType gradient_transport = at::kFloat;
  /// The same as Strategy::Fused::lookup_threads. Layers of one backend share a background
  /// thread for their lookups, and the first layer that uses it sets this number for all.
  int64_t lookup_threads = 0;
  /// The device of the tensors that the backend sends: kCPU for MPI. A GPU, which NCCL
  /// needs, has not been tested.
  at::Device device = at::kCPU;

  bool operator==(const ShardingOptions&) const = default;
};
static_assert(std::is_aggregate_v<ShardingOptions>);

}  // namespace tessera
