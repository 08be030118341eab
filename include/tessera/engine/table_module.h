// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/checkpoint_options.h>
#include <tessera/engine/strategy.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/tables/embedding_tables.h>
#include <torch/nn/module.h>

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

class EmbeddingStrategy;
struct EmbeddingState;

// snippet: tests/docs/reference_layers_test.cpp TableModule
/// An object with embedding tables: a TPUEmbedding or an EmbeddingEngine. No other class
/// derives from it. Use it in code that works on the tables of any model:
///
///   model->apply([](torch::nn::Module& part) {
///     if (const TableModule* tables = TableModule::of(part)) {
///       std::cout << tables->summary();
///     }
///   });
///
/// The functions of an EmbeddingEngine are thread safe. While one of them changes, saves or
/// loads tables, other threads wait. For a thread that already waits for a batch, this time
/// counts towards its timeout. While a function changes the tables of a TPUEmbedding, no
/// other function of that layer may run.
class TableModule {
 public:
  virtual ~TableModule() = default;

  /// Returns the module as a TableModule, or nullptr if it holds no tables itself. This
  /// does not look into submodules: call it for each part, as above.
  static TableModule* of(torch::nn::Module& module) {
    return dynamic_cast<TableModule*>(&module);
  }
  static const TableModule* of(const torch::nn::Module& module) {
    return dynamic_cast<const TableModule*>(&module);
  }

  /// "TPUEmbedding" or "EmbeddingEngine".
  virtual std::string class_name() const = 0;
  /// The features that look into the tables.
  virtual const Nest<FeatureConfig>& feature_configs() const = 0;
  /// Where the tables live. Strategy::fused() for an EmbeddingEngine.
  virtual Strategy strategy() const = 0;
  /// A text table with the name, rows, dim, optimizer, slots and memory of each table.
  /// After 100 updates, it also names tables whose accumulators have hardly grown.
  virtual std::string summary() const = 0;
  /// The dtype of activations. Always float32 for an EmbeddingEngine.
  virtual torch::Dtype activation_dtype() const {
    return torch::kFloat;
  }

  /// The number of updates applied so far. On Strategy::host() and padded(), these are
  /// the updates of make_optimizer(layer). With gradient_accumulation_steps = n, n
  /// passes or batches make one update. If tables differ in n, the smallest n counts.
  virtual int64_t iterations() const = 0;

  /// The tables as tensors that share the memory of the module: writing to them changes
  /// it. The rows of a table with TableConfig::keys are a copy, and so are rows of kChar,
  /// which become float32. Don't write between begin_forward() and finish_forward(), in a
  /// prefetch() loop, or while batches of an EmbeddingEngine are in flight. There, call
  /// update_embedding_table(), which waits for the lookups.
  /// Errors:  c10::Error on a sharded strategy, where no process has all rows.
  EmbeddingTables embedding_tables() const;

  /// A float32 copy of rows [begin, end). On a sharded strategy, the rows are collected
  /// from all ranks: call it with the same arguments on each.
  /// Errors:  c10::ValueError for an unknown table or one with TableConfig::keys;
  ///          c10::IndexError for rows out of range.
  virtual at::Tensor read_rows(
      const std::string& name,
      int64_t begin,
      int64_t end) const = 0;

  /// Replaces all rows of a table with `values` [vocabulary_size, dim], such as
  /// pretrained rows. The slots do not change. On a sharded strategy, each rank copies
  /// only its own rows, without communication: pass the same values on all ranks.
  /// Errors:  c10::TypeError or ValueError naming the table, also for a table with
  ///          TableConfig::keys, whose keys have to be given too.
  void update_embedding_table(
      const std::string& name,
      const at::Tensor& values);
  /// Replaces all keys of a key table by `keys` [n] int64, and their rows by `values`
  /// [n, dim]. The slots start anew. If a batch of an EmbeddingEngine is in flight, the
  /// gradients of keys that have lost their rows are dropped.
  /// Errors:  c10::TypeError or ValueError naming the table; c10::Error if gradients wait
  ///          for an update. Nothing is changed.
  void update_embedding_table(
      const std::string& name,
      const at::Tensor& keys,
      const at::Tensor& values);

  /// Evicts the keys whose last update is at least `updates` updates ago, and returns the
  /// number of these keys. A key that comes back starts anew. If a batch of an
  /// EmbeddingEngine is in flight, the gradients of evicted keys are dropped. On a sharded
  /// strategy, each rank evicts and counts the keys that it owns, so call it on all ranks.
  /// Errors:  c10::ValueError for a table without keys, and for updates < 1; c10::Error
  ///          if gradients wait for an update. Nothing is changed.
  int64_t evict(const std::string& name, int64_t updates);

  /// Writes a checkpoint into `directory`: tables, slots, step counter, seed, feature
  /// configs, and the gradients that gradient_accumulation_steps has collected. It suits
  /// tables that are too large for one archive. TPUEmbedding and EmbeddingEngine load each
  /// other's checkpoints. Files of rows are written in parallel, directly from the tables'
  /// memory. The checkpoint is valid once all of it is on the disk. A crash at any moment
  /// leaves the previous checkpoints intact.
  ///
  ///   embedding->save_checkpoint("run/checkpoints", {.full_every = 10});
  ///   embedding->load_checkpoint("run/checkpoints");  // the newest
  ///
  /// Gradients that wait for a step under Apply::kOnStep are not saved. Batches in flight
  /// are not saved either: their gradients are part of a later checkpoint. On a sharded
  /// strategy, all ranks write and read their own rows in a directory that all of them can
  /// access. Any number of ranks can load the checkpoint.
  /// Errors:  c10::ValueError for options out of range; c10::Error naming the path and
  ///          the reason if the disk fails or another process saves there.
  void save_checkpoint(
      const std::string& directory,
      const CheckpointOptions& options = {});
  /// Loads a checkpoint. The gradients that gradient_accumulation_steps has collected for
  /// the loaded tables are replaced by the saved ones, and gradients that wait for a step
  /// are dropped. Batches in flight keep the activations that have been looked up, and
  /// their gradients update the loaded tables.
  /// Errors:  c10::ValueError naming a damaged file and the damaged bytes, or listing
  ///          every difference; nothing is changed.
  void load_checkpoint(
      const std::string& directory,
      const LoadOptions& options = {});

  /// Writes the same data as save_checkpoint() into an archive. The names of its entries do
  /// not depend on the strategy. TPUEmbedding and EmbeddingEngine load each other's
  /// archives. On Strategy::host() and padded(), slots exist after make_optimizer() or with
  /// a slot_creation. The settings of to() are not saved, and a load does not change them.
  /// Errors:  c10::Error on a sharded strategy, because an archive holds whole tables.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Loads an archive as load_checkpoint() loads a checkpoint. It warns if the archive was
  /// saved in the middle of a gradient accumulation and lacks the collected gradients.
  /// Errors:  c10::ValueError listing damaged entries, or every difference in tables,
  ///          shapes, optimizers and slots; nothing is changed.
  void load(torch::serialize::InputArchive& archive);
  /// Loads parts of an archive, or loads it into larger tables, as `options` say.
  void load(
      torch::serialize::InputArchive& archive,
      const LoadOptions& options);

  // The following functions are for other parts of Tessera, which know EmbeddingState.

  /// The tables and counters themselves, not a copy. The call takes no lock, so an update
  /// may change them at any time.
  virtual const EmbeddingState& state() const = 0;
  /// Calls `read` while no other thread changes the tables of an engine. `read` must not
  /// call the module.
  virtual void read_state(
      c10::function_ref<void(const EmbeddingState&)> read) const = 0;
  /// Like read_state(), but `change` may change the state, and no lookup of the module
  /// runs in the background meanwhile.
  virtual void change_state(
      c10::function_ref<void(EmbeddingState&)> change) = 0;
  /// Waits until no lookup of the module runs in the background. An EmbeddingEngine also
  /// waits for a running update.
  virtual void wait_for_lookups() const = 0;
  /// Returns the object that updates the tables in backward(), or nullptr for an
  /// EmbeddingEngine.
  virtual std::shared_ptr<EmbeddingStrategy> backward_strategy() const {
    return nullptr;
  }
  /// These do what save_checkpoint() and load_checkpoint() do, but errors begin with
  /// `where`, the function that the user called.
  void save_tables(
      const std::string& directory,
      const CheckpointOptions& options,
      const std::string& where);
  void load_tables(
      const std::string& directory,
      const LoadOptions& options,
      const std::string& where);
};

}  // namespace tessera
