// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/sharded_strategy.h>

#include <tessera/distributed/mpi_backend.h>  // defines c10d::Backend, whatever LibTorch has

#include "packages/distributed/src/backend_group.h"
#include "packages/distributed/src/partition.h"
#include "packages/distributed/src/sharded_table_store.h"

#include <memory>
#include <string>
#include <utility>

namespace tessera::distributed {

namespace {

LocalRows rows_of(
    const Strategy::Sharded& strategy,
    const std::string& name,
    const TableConfig& table) {
  const int64_t ranks = strategy.ranks->size();
  const TablePlacement placement = placement_of(name, strategy.options, ranks);
  if (table.keys) {
    check_placement_of_keys(name, placement, "[ShardingOptions]");
  }
  return Partition(placement, table, ranks).rows_of(strategy.ranks->rank());
}

std::shared_ptr<TableStore> make_store(
    const Strategy::Sharded& strategy,
    std::shared_ptr<EmbeddingState> state) {
  return std::make_shared<ShardedTableStore>(
      std::move(state), strategy.ranks, strategy.options);
}

}  // namespace

Strategy sharded_strategy(
    c10::intrusive_ptr<c10d::Backend> backend,
    ShardingOptions options) {
  auto ranks = group_of(std::move(backend), options.device);
  return Strategy::sharded(
      {.ranks = std::move(ranks),
       .options = std::move(options),
       .rows_of = rows_of,
       .make_store = make_store});
}

}  // namespace tessera::distributed
