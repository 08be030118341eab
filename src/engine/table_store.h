// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/tensor_update.h"
#include "src/common/lookup_worker.h"
#include "src/common/memory_ranges.h"
#include "src/engine/embedding_state.h"
#include "src/engine/find_keys.h"
#include "src/engine/gradient_accumulator.h"
#include "src/engine/key_updates.h"
#include "src/engine/lookup.h"
#include "src/engine/table_update.h"
#include "src/features/id_bags.h"

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

namespace tessera {

/// Where the gradients of the rows of one lookup go. ShardedTableStore uses the derived
/// distributed::Route. TableStore needs no route.
struct LookupRoute {
  virtual ~LookupRoute() = default;
};

/// The result of lookup().
struct Lookup {
  std::vector<at::Tensor> activations = {};  // one per feature
  /// One per feature: the table in which its ids are row numbers after lookup().
  std::shared_ptr<const std::vector<LookupTable>> tables = {};
  /// Where to send the gradients of rows from other ranks. Unset if this process has all
  /// rows.
  std::shared_ptr<const LookupRoute> route = {};
  /// Rows of `tables` that may be read until this is cleared.
  ScratchRows scratch = {};
};

/// The activation gradients of one lookup.
struct LookupGradients {
  /// The bags after lookup(). They must outlive the update.
  const std::vector<IdBags>* bags = nullptr;
  /// One per feature, with the shape of its activation. Undefined stands for zeros.
  std::vector<at::Tensor> gradients = {};
  std::shared_ptr<const LookupRoute> route = {};
};

/// The new values that a custom rule has computed for a table's touched rows.
struct CustomUpdate {
  TableState* table = nullptr;
  at::Tensor ids = {};  // [rows] int64
  optim::TensorRows rows = {};  // float32
  kernels::Rounding rounding = {};
};

/// Holds the rows of tables, looks them up and updates them. Lookups can run on several
/// threads at the same time. An update waits for them, and new lookups wait for the
/// update.
///
/// This class holds all rows. ShardedTableStore overrides the virtual functions to fetch
/// rows from other ranks and to send gradients to them.
class TableStore {
 public:
  /// `lookup_threads`: the number of intra-op threads of worker(). 0 means as many as
  /// LibTorch has.
  explicit TableStore(
      std::shared_ptr<EmbeddingState> state,
      int64_t lookup_threads = 0);
  virtual ~TableStore() = default;

  /// Activations of checked ids, one tensor with its own storage per feature.
  /// `bags` must not hold kZeroRow. Their ids and keys are changed as by find_keys(). All
  /// rows must be in this process.
  std::vector<at::Tensor> lookup_local(
      std::vector<IdBags>& bags,
      UnknownKeys unknown) const;

  /// Looks up rows that may be on other ranks. It then changes the ids in `bags` to the
  /// rows of Lookup::tables.
  virtual Lookup lookup(std::vector<IdBags>& bags, UnknownKeys unknown);

  /// Called instead of lookup() if a batch can't be read. Passes the error to
  /// the ranks that wait for this rank.
  virtual void abort(const std::exception_ptr& /*error*/) {}

  /// Returns the worker that runs lookups in the background. Lookups that were submitted
  /// to it end before the next update begins.
  virtual LookupWorker& worker();

  /// No update runs while the lock is held.
  std::shared_lock<std::shared_mutex> lock_for_reading() const {
    return std::shared_lock<std::shared_mutex>(tables_in_use_);
  }

  /// No lookup runs, in the background or elsewhere, while the lock is held.
  std::unique_lock<std::shared_mutex> lock_for_writing() const;

  /// Does what lock_for_writing() does, for destructors. In a forked child, it does not
  /// wait for background lookups, because they don't run there.
  void end_lookups() const noexcept;

  /// Refuses gradients that plan_update() can't use.
  /// Errors:  c10::ValueError naming feature, expected and got.
  void check(const LookupGradients& gradients) const;

  /// A planned update. Everything that can fail has been done.
  struct Update {
    std::vector<TableUpdate> tables = {};
    std::vector<CustomUpdate> custom = {};
    /// [tables], accumulated gradients. If the table is due, this update applies them.
    /// Otherwise they become the new EmbeddingState::accumulated.
    std::vector<GradientAccumulator> accumulators = {};
    std::vector<at::Tensor> gradients = {};  // the terms point to them
    std::list<IdBags> bags = {};  // the terms point to them
    std::list<KeyUpdate> keys = {};  // of key tables
    std::list<Buffer<uint32_t>> key_numbers = {};  // the terms point to them
    std::vector<double> learning_rates = {};  // [updated tables]
    /// The message about a gradient that is not finite, under FiniteCheck::kNote.
    std::string non_finite = {};
  };

  /// Plans one update from the gradients of all lookups, summed per row. Reads each
  /// learning rate once and runs custom rules.
  ///
  /// Tables with gradient_accumulation_steps = n collect gradients, and apply their
  /// mean when EmbeddingState::passes reaches a multiple of n.
  /// Errors:  c10::ValueError; nothing is changed.
  Update plan_update(const std::vector<LookupGradients>& lookups);

  /// Plans one update from accumulated gradients, multiplied by `factor`. `accumulators`
  /// has one entry per table, and must outlive the update.
  Update plan_accumulated_update(
      const std::vector<GradientAccumulator>& accumulators,
      double factor);

  /// Called before apply_update(). `error` is nullptr unless something that belongs to the
  /// update has failed. If the tables are sharded, waits for all ranks and checks that they
  /// have the same number of `passes`.
  /// Errors:  `error`, or another rank's.
  virtual void confirm(const std::exception_ptr& error, int64_t /*passes*/) {
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
  }

  /// Changes the tables and increases EmbeddingState::passes by one. Can't fail.
  void apply_update(Update update);

  /// Returns the sums of `accumulators`, one per table, and the gradients of one pass. If
  /// the layer refuses gradients that are not finite and there is one, `non_finite` becomes
  /// a message about it. Otherwise it becomes empty.
  /// Errors:  c10::ValueError; nothing is changed.
  std::vector<GradientAccumulator> accumulate(
      const std::vector<GradientAccumulator>& accumulators,
      const std::vector<LookupGradients>& lookups,
      std::string& non_finite);

  /// The values of all ranks, in order of rank. All must pass the same `options`.
  virtual std::vector<double> gather(double value, uint64_t /*options*/) {
    return {value};
  }

  const EmbeddingState& state() const {
    return *state_;
  }

 protected:
  // What is done about gradients that are not finite, if the layer refuses them.
  enum class FiniteCheck {
    kRaise,  // raises an error
    kNote  // sets Update::non_finite
  };

  // The terms of each table. TableUpdate::table is nullptr if the table is not to be
  // updated. `update` keeps the tensors and bags that the terms point to.
  virtual std::vector<TableUpdate> read_gradients(
      const std::vector<LookupGradients>& lookups,
      FiniteCheck finite_check,
      Update& update);

  // Checks the terms of all features, as find_non_finite() expects them.
  void check_finite(
      const std::vector<TableUpdate>& updates,
      FiniteCheck finite_check,
      Update& update) const;

  // The gradient of one feature's activation. `update` keeps its values.
  TableUpdate::Term term_of(
      const LookupGradients& lookup,
      size_t feature,
      Update& update) const;

  // Whether the update changes the table.
  // Errors:  c10::ValueError if the table has gradients but no optimizer.
  bool is_updated(const std::vector<LookupGradients>& lookups, size_t table)
      const;

  // Returns the result of `plan`. If the tables are sharded, first waits until it has
  // succeeded on all ranks.
  virtual Update finish_plan(c10::function_ref<Update()> plan) {
    return plan();
  }

  // Warns once about a feature that no gradient reaches.
  void warn_of_missing_gradients(const std::vector<LookupGradients>& lookups);

  virtual void wait_for_lookups() const;

  int64_t lookup_threads() const {
    return lookup_threads_;
  }
  TableUpdater& updater() {
    return updater_;
  }
  EmbeddingState& mutable_state() {
    return *state_;
  }

 private:
  // Moves the terms of tables with gradient_accumulation_steps into
  // Update::accumulators. Where a table is due, the mean takes their place.
  void accumulate_terms(std::vector<TableUpdate>& updates, Update& update);

  // Whether a feature of the table has a gradient.
  bool has_gradient(const std::vector<LookupGradients>& lookups, size_t table)
      const;

  // Whether the next update changes the table. If not, it only collects gradients.
  bool is_due(const TableState& table) const;

  // Adds the terms of each update to the accumulated gradients of its table, which gives
  // one sum per row. Updates without a table are skipped.
  std::vector<GradientAccumulator> sum(
      const std::vector<GradientAccumulator>& accumulators,
      std::vector<TableUpdate>& updates,
      Update& update);

  // Decides about the keys of key tables. If accumulators[i] exists and has passes, the
  // only term of updates[i] is the sum of accumulators[i].
  void plan_key_updates(
      std::vector<TableUpdate>& updates,
      const std::vector<GradientAccumulator>& accumulators,
      Update& update);

  // Reads learning rates and runs custom rules.
  void add_row_updates(std::vector<TableUpdate> updates, Update& update);

  std::shared_ptr<EmbeddingState> state_;
  bool has_key_tables_ = false;
  std::shared_ptr<const std::vector<LookupTable>> lookup_tables_;  // [features]
  int64_t lookup_threads_ = 0;
  const ThreadOwner owner_;
  mutable std::shared_mutex tables_in_use_;  // lookups hold it shared
  MemoryRanges table_memory_;  // tables and slots
  Buffer<float> zero_row_;  // stands for undefined gradients
  TableUpdater updater_;
  std::vector<int64_t> learning_rate_tags_;  // [tables]
  std::vector<int64_t> accumulation_steps_;  // [tables]
  bool has_warned_ = false;  // about a missing gradient
  mutable std::mutex worker_mutex_;  // guards the creation of worker_
  // Created at the first call of worker(). The last member: its jobs use the others.
  std::unique_ptr<LookupWorker> worker_;
};

}  // namespace tessera
