// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/distributed/src/row_exchange.h"
#include "src/common/rank_group.h"
#include "src/engine/table_store.h"

#include <tessera/engine/sharding_options.h>

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace tessera::distributed {

/// A TableStore whose tables are spread over ranks.
///
/// In a lookup, each rank sends its distinct ids to their owners, receives the rows, and
/// applies the combiner to them. In an update, each rank sends its sum per distinct row
/// to the owner, which adds the sums in the order of the ranks and applies them once.
/// For data-parallel tables, the ranks sum a gradient of all rows.
class ShardedTableStore : public TableStore {
 public:
  ShardedTableStore(
      std::shared_ptr<EmbeddingState> state,
      std::shared_ptr<RankGroup> ranks,
      const ShardingOptions& options);

  Lookup lookup(std::vector<IdBags>& bags, UnknownKeys unknown) override;
  void abort(const std::exception_ptr& error) override;
  void confirm(const std::exception_ptr& error, int64_t passes) override;
  std::vector<double> gather(double value, uint64_t options) override;
  /// All layers of a group share a worker, so that their lookups keep their order.
  LookupWorker& worker() override;

 protected:
  std::vector<TableUpdate> read_gradients(
      const std::vector<LookupGradients>& lookups,
      FiniteCheck finite_check,
      Update& update) override;
  Update finish_plan(c10::function_ref<Update()> plan) override;
  void wait_for_lookups() const override;

 private:
  using TableSums = std::vector<RowGradients>;  // one per table

  // Returns, for each lookup and each table, the sum of the gradients of each row. The rows
  // of a data-parallel table are its own. Those of another table are positions in its group
  // (see Route).
  std::vector<TableSums> sum_lookups(
      const std::vector<LookupGradients>& lookups,
      FiniteCheck finite_check,
      Update& update);
  // One function for each group of tables and lookup.
  using PendingGradients =
      std::vector<std::vector<std::function<at::Tensor()>>>;
  PendingGradients send_gradients(
      const std::vector<LookupGradients>& lookups,
      const std::vector<TableSums>& sums) const;
  void receive_gradients(
      size_t group,
      const std::vector<std::function<at::Tensor()>>& pending,
      const std::vector<LookupGradients>& lookups,
      std::vector<TableUpdate>& updates,
      Update& update);

  // The data-parallel tables that are updated. All their rows are one vector of floats. A
  // count behind each row says whether any rank has touched it.
  struct DenseRows {
    struct Part {
      size_t table;
      int64_t begin;
    };
    std::vector<Part> tables = {};
    int64_t floats = 0;
  };
  DenseRows find_dense_rows() const;
  at::Tensor pack_dense_rows(
      const DenseRows& rows,
      const std::vector<TableSums>& lookups) const;
  void add_dense_updates(
      const DenseRows& rows,
      std::vector<TableUpdate>& updates,
      Update& update);

  std::shared_ptr<RankGroup> ranks_;
  RowExchange exchange_;
  // Whether an update may fail on one rank alone after gradients have arrived.
  bool needs_second_barrier_ = false;
};

}  // namespace tessera::distributed
