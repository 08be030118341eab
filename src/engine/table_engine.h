// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/tensor_update.h"
#include "src/common/lookup_worker.h"
#include "src/common/memory_ranges.h"
#include "src/engine/embedding_state.h"
#include "src/engine/gradient_accumulator.h"
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
#include <vector>

namespace tessera {

namespace distributed {
struct Route;
}  // namespace distributed

/// What look_up() has found.
struct Lookup {
  std::vector<at::Tensor> activations = {};  // one per feature
  /// One per feature: what its ids number now.
  std::vector<LookupTable> tables = {};
  /// The way back to where rows came from; unset when all of them are here.
  std::shared_ptr<const distributed::Route> route = {};
};

/// The activation gradients of one lookup.
struct LookupGradients {
  /// As look_up() has left them; they outlive the update.
  const std::vector<IdBags>* bags = nullptr;
  /// One per feature, of its activation's shape; undefined: zeros.
  std::vector<at::Tensor> gradients = {};
  std::shared_ptr<const distributed::Route> route = {};
};

/// What a custom rule makes of a table's touched rows.
struct CustomUpdate {
  TableState* table = nullptr;
  at::Tensor ids = {};  // [rows] int64
  optim::TensorRows rows = {};  // float32
  kernels::Rounding rounding = {};
};

/// Looks rows up and updates them. Lookups may run on several threads at once;
/// an update waits for them and keeps new ones waiting.
///
/// All rows are here; a ShardedEngine fetches rows from other ranks and sends
/// gradients there, by the virtual functions.
class TableEngine {
 public:
  /// `lookup_threads`: of worker(); 0: as many as LibTorch's intra-op threads.
  explicit TableEngine(
      std::shared_ptr<EmbeddingState> state,
      int64_t lookup_threads = 0);
  virtual ~TableEngine() = default;

  TableEngine(const TableEngine&) = delete;
  TableEngine& operator=(const TableEngine&) = delete;

  /// Activations of checked ids, one tensor with its own storage per feature.
  /// `bags` must not hold kZeroRow.
  std::vector<at::Tensor> lookup(const std::vector<IdBags>& bags) const;

  /// The same where rows may be elsewhere: `bags` get the numbers of what came.
  virtual Lookup look_up(std::vector<IdBags>& bags);

  /// In place of look_up(), when a batch can't be read: tells those who wait.
  virtual void give_up(const std::exception_ptr& /*error*/) {}

  /// Runs lookups in the background. What it has been given is done before the
  /// next update begins.
  virtual LookupWorker& worker();

  /// No update runs while the lock is held.
  std::shared_lock<std::shared_mutex> stop_updates() const {
    return std::shared_lock<std::shared_mutex>(tables_in_use_);
  }

  /// No lookup runs, in the background or elsewhere, while the lock is held.
  std::unique_lock<std::shared_mutex> stop_lookups() const;

  /// Does what stop_lookups() does, for destructors. In a forked child, it does not
  /// wait for background lookups, because they don't run there.
  void end_lookups() const noexcept;

  /// Refuses gradients that plan() can't use.
  /// Errors:  c10::ValueError naming feature, expected and got.
  void check(const LookupGradients& gradients) const;

  /// An update of which everything that can fail is done.
  struct Update {
    std::vector<TableUpdate> tables = {};
    std::vector<CustomUpdate> custom = {};
    /// [tables], accumulated gradients: applied by this update if it is due, otherwise
    /// the new EmbeddingState::accumulated.
    std::vector<GradientAccumulator> piles = {};
    std::vector<at::Tensor> gradients = {};  // what the terms point to
    std::list<IdBags> bags = {};  // likewise
    std::vector<double> rates = {};  // that were read
  };

  /// One update from the gradients of all lookups, summed per row.
  ///
  /// Tables with gradient_accumulation_steps = n collect gradients, and apply their
  /// mean when the step counter reaches a multiple of n. Reads each learning rate once
  /// and runs custom rules.
  /// Errors:  c10::ValueError; nothing is changed.
  Update plan(const std::vector<LookupGradients>& lookups);

  /// One update from piles, one per table, each multiplied by `gain`. They
  /// outlive the update.
  Update plan(const std::vector<GradientAccumulator>& piles, double gain);

  /// Before apply(): nothing that belongs to the update has failed. On shards, of
  /// all ranks, which have as many `passes`.
  /// Errors:  `error`, or another rank's.
  virtual void confirm(const std::exception_ptr& error, int64_t /*passes*/) {
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
  }

  /// Carries the update out and advances the step counter. Can't fail.
  void apply(Update update);

  /// `piles`, one per table, with the gradients of one more pass.
  /// Errors:  c10::ValueError; nothing is changed.
  std::vector<GradientAccumulator> collect(
      const std::vector<GradientAccumulator>& piles,
      const std::vector<LookupGradients>& lookups);

  /// What each rank has given, in order; all must have the same `options`.
  virtual std::vector<double> gather(double value, uint64_t /*options*/) {
    return {value};
  }

  const EmbeddingState& state() const {
    return *state_;
  }

 protected:
  // The terms of each table; those that no gradient reaches and that have no
  // optimizer are left out (table is nullptr). `update` keeps what they point
  // to.
  virtual std::vector<TableUpdate> read(
      const std::vector<LookupGradients>& lookups,
      Update& update);

  // The gradient of one feature's activation.
  TableUpdate::Term term_of(
      const LookupGradients& lookup,
      size_t feature,
      Update& update) const;

  // Whether an update has something to do on a table.
  // Errors:  c10::ValueError when it has gradients but no optimizer.
  bool is_updated(const std::vector<LookupGradients>& lookups, size_t table)
      const;

  // What `plan` gives; on shards, when it has succeeded on all ranks.
  virtual Update finish_plan(c10::function_ref<Update()> plan) {
    return plan();
  }

  // Warns, once, of a feature that no gradient reaches.
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
  Update plan(std::vector<TableUpdate> updates, Update update);

  std::vector<LookupTable> lookup_tables() const;

  // Whether a feature of the table has a gradient.
  bool is_reached(const std::vector<LookupGradients>& lookups, size_t table)
      const;

  // Whether the next update changes the table. If not, it only collects gradients.
  bool is_due(const TableState& table) const;

  // One sum per row: of the pile, if it holds any, and the update's own terms.
  // The updates without table are skipped.
  std::vector<GradientAccumulator> sum(
      const std::vector<const GradientAccumulator*>& piles,
      std::vector<TableUpdate>& updates);

  // Reads learning rates and runs custom rules.
  void finish(std::vector<TableUpdate> updates, Update& update);

  std::shared_ptr<EmbeddingState> state_;
  int64_t lookup_threads_ = 0;
  const ThreadOwner owner_;
  mutable std::shared_mutex tables_in_use_;  // shared by lookups
  MemoryRanges table_memory_;  // tables and slots
  Buffer<float> zero_row_;  // the gradient of a feature that got none
  TableUpdater updater_;
  std::vector<int64_t> rate_tags_;  // [tables]
  bool has_warned_ = false;  // of a missing gradient
  mutable std::mutex worker_mutex_;  // its creation
  // Once it was asked for. The last member: its jobs use the others.
  std::unique_ptr<LookupWorker> worker_;
};

}  // namespace tessera
