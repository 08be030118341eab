// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/rank_group.h"
#include "src/distributed/row_exchange.h"
#include "src/engine/table_engine.h"

#include <tessera/engine/sharding_options.h>

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <vector>

namespace tessera::distributed {

/// A TableEngine whose tables are spread over ranks.
///
/// A lookup: each rank's distinct ids to their owners, rows back, then the
/// combiner over what came. An update: each rank's sum per distinct row to its
/// owner, which adds the sums in the order of ranks and applies them once. Of
/// replicated tables a gradient of all rows is summed over the ranks.
class ShardedEngine : public TableEngine {
 public:
  ShardedEngine(
      std::shared_ptr<EmbeddingState> state,
      std::shared_ptr<RankGroup> ranks,
      const ShardingOptions& options);

  Lookup look_up(std::vector<IdBags>& bags) override;
  void give_up(const std::exception_ptr& error) override;
  void confirm(const std::exception_ptr& error, int64_t passes) override;
  std::vector<double> gather(double value, uint64_t options) override;
  /// One for all layers of the group, so that their lookups keep their order.
  LookupWorker& worker() override;

 protected:
  std::vector<TableUpdate> read(
      const std::vector<LookupGradients>& lookups,
      Update& update) override;
  Update finish_plan(c10::function_ref<Update()> plan) override;
  void wait_for_lookups() const override;

 private:
  using Sums = std::vector<RowGradients>;  // one per table

  // The summed gradients of each lookup's tables; its rows are positions in the
  // tables' groups, or rows of replicated ones.
  std::vector<Sums> sum_lookups(
      const std::vector<LookupGradients>& lookups,
      Update& update);
  void exchange_gradients(
      size_t group,
      const std::vector<LookupGradients>& lookups,
      const std::vector<Sums>& sums,
      std::vector<TableUpdate>& updates,
      Update& update);
  void sum_replicated(
      const std::vector<Sums>& lookups,
      std::vector<TableUpdate>& updates,
      Update& update);

  std::shared_ptr<RankGroup> ranks_;
  RowExchange exchange_;
  // Whether an update may fail on one rank alone after gradients have come.
  bool may_fail_late_ = false;
};

}  // namespace tessera::distributed
