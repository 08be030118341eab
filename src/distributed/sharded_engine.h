// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/distributed/partition.h"
#include "src/distributed/rank_group.h"
#include "src/distributed/route.h"
#include "src/table_engine.h"

#include <tessera/sharding.h>

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

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

  using TableEngine::plan;
  Update plan(const std::vector<LookupGradients>& lookups) override;
  Update plan(const std::vector<GradientPile>& piles, double gain) override;

  std::vector<double> gather(double value) override;
  bool is_counted_elsewhere(size_t table) const override;

 protected:
  std::vector<TableUpdate> read(
      const std::vector<LookupGradients>& lookups,
      Update& update) override;

 private:
  // Tables whose rows travel as one tensor.
  struct Group {
    int64_t dim = 0;
    at::ScalarType dtype = at::kFloat;
    bool is_updated = false;
    std::vector<size_t> tables = {};
  };
  // What one rank wants of a table.
  struct Wanted {
    Buffer<uint32_t> keys = {};  // distinct, ascending
    std::vector<int64_t> begin = {};  // [ranks + 1], of each owner's
    std::vector<int64_t> position = {};  // [ranks], of each owner's first
  };
  using Sums = std::vector<RowGradients>;  // one per table

  void group_tables();
  bool is_split(size_t table) const {
    return group_of_[table] != kNoGroup;
  }
  // Distinct keys of one table; ids become indices of these.
  Wanted find_distinct(size_t table, std::vector<IdBags>& bags) const;
  std::vector<int64_t> count_words(const std::vector<Wanted>& wanted) const;
  at::Tensor pack_ids(
      const std::vector<Wanted>& wanted,
      const std::vector<int64_t>& words) const;
  // What each rank asks for, from the words that came.
  void read_asked(
      const at::Tensor& ids,
      const std::vector<int64_t>& words,
      Route& route) const;
  void place_wanted(std::vector<Wanted>& wanted, Route& route) const;
  at::Tensor gather_asked(size_t group, const Route& route) const;

  // What `plan` gives, when it has succeeded on all ranks with the same learning
  // rates.
  Update agree_on(c10::function_ref<Update()> plan) const;
  std::vector<int64_t> same_for_all(uint64_t value) const;
  void check_equal(
      const std::vector<int64_t>& told,
      uint64_t own,
      const char* problem) const;

  // The summed gradients of each lookup's tables; its rows are positions in the
  // tables' groups, or rows of replicated ones.
  std::vector<Sums> sum_lookups(
      const std::vector<LookupGradients>& lookups,
      Update& update);
  at::Tensor pack_gradients(size_t group, const Route& route, const Sums& sums)
      const;
  void sum_replicated(
      const std::vector<Sums>& lookups,
      std::vector<TableUpdate>& updates,
      Update& update);

  static constexpr size_t kNoGroup = static_cast<size_t>(-1);

  std::shared_ptr<RankGroup> ranks_;
  ShardingOptions options_;
  std::vector<Partition> partitions_;  // one per table
  std::vector<size_t> group_of_;  // one per table; kNoGroup: replicated
  std::vector<Group> groups_;
  // Whether an update may fail on one rank alone after gradients have come.
  bool may_fail_late_ = false;
  uint64_t lookups_ = 0;
};

}  // namespace tessera
