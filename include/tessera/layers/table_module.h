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
#include <string>

namespace tessera {

struct EmbeddingState;

// snippet: tests/docs/reference_layers_test.cpp TableModule
/// A module that holds embedding tables: TPUEmbedding or EmbeddingEngineModule. No other
/// class implements it. Use it in code that works on the tables of any model:
///
///   model->apply([](torch::nn::Module& part) {
///     if (const TableModule* tables = TableModule::of(part)) {
///       std::cout << tables->summary();
///     }
///   });
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

  /// The features that look into the tables.
  virtual const Nest<FeatureConfig>& feature_configs() const = 0;
  /// Where the tables live. Strategy::fused() for an EmbeddingEngineModule.
  virtual Strategy strategy() const = 0;
  /// A text table with the name, rows, dim, optimizer, slots and memory of each table.
  virtual std::string summary() const = 0;

  /// The number of updates applied so far. On Strategy::host() and padded(), only those
  /// of make_optimizer(layer) count.
  virtual int64_t iterations() const = 0;
  /// The tables as tensors that share the module's memory. The rows of a table with
  /// TableConfig::keys are a copy.
  /// Errors:  c10::Error on a sharded strategy, where no process has all rows.
  virtual EmbeddingTables embedding_tables() const = 0;
  /// A float32 copy of rows [begin, end). On a sharded strategy, the rows are collected
  /// from all ranks: call it with the same arguments on each.
  /// Errors:  c10::ValueError or IndexError naming the table; tables with
  ///          TableConfig::keys are refused.
  virtual at::Tensor read_rows(
      const std::string& name,
      int64_t begin,
      int64_t end) const = 0;
  /// Replaces all rows of a table with `values` [vocabulary_size, dim]. The slots do not
  /// change.
  /// Errors:  c10::TypeError or ValueError naming the table, also for a table with
  ///          TableConfig::keys, whose keys have to be given too.
  virtual void update_embedding_table(
      const std::string& name,
      const at::Tensor& values) = 0;

  // The following functions are for other parts of Tessera, which know EmbeddingState.

  /// The tables and counters themselves, not a copy. It takes no lock, and updates change
  /// them.
  virtual const EmbeddingState& state() const = 0;
  /// Calls `read` while no other thread changes the tables of an engine. `read` must not
  /// call the module.
  virtual void read_state(
      c10::function_ref<void(const EmbeddingState&)> read) const = 0;
  /// Waits until no lookup of the module runs in the background. An EmbeddingEngineModule
  /// also waits for a running update.
  virtual void wait_for_lookups() const = 0;
  /// save_checkpoint() and load_checkpoint(), but errors begin with `where`, the function
  /// that the user called.
  virtual void save_tables(
      const std::string& directory,
      const CheckpointOptions& options,
      const std::string& where) = 0;
  virtual void load_tables(
      const std::string& directory,
      const LoadOptions& options,
      const std::string& where) = 0;
};

}  // namespace tessera
