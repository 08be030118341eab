// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace tessera {

// snippet: tests/docs/reference_engine_test.cpp CheckpointOptions
/// What save_checkpoint() of a layer or an engine writes.
///
///   embedding->save_checkpoint(
///       "run/checkpoints",
///       {.keep_last = 3,
///        .full_every = 10,  // the others have only changed rows
///        .extra = [&](torch::serialize::OutputArchive& archive) {
///          tower->save(archive);
///        }});
struct CheckpointOptions {
  /// The number of complete checkpoints to keep, >= 1. Older checkpoints that these
  /// build on are kept, too.
  int64_t keep_last = 2;
  /// Every n-th checkpoint is full. The checkpoints between hold only the rows that have
  /// changed since the previous one. With 1, all checkpoints are full. Tables split by
  /// RowSplit::kMod are always saved in full. If `full_every` is more than 1, a checksum
  /// of each row finds the changed rows, whatever has written them. The checksums take 8
  /// bytes of memory per row, or 16 per key of a key table, and each checkpoint reads all
  /// tables from memory.
  int64_t full_every = 1;
  /// The maximum size of a file of rows in bytes, >= 1. The rows of a larger table go
  /// to several files.
  int64_t file_bytes = int64_t{1} << 30;
  /// Writes additional data into the same checkpoint, such as the dense layers and
  /// their optimizer. The data is held in memory, so it should be small. The function
  /// must not call the layer or engine that saves. If the tables are sharded, only
  /// rank 0 runs it.
  std::function<void(torch::serialize::OutputArchive&)> extra = {};
};
static_assert(std::is_aggregate_v<CheckpointOptions>);

/// Decides what a load does if the layer keeps slots for a table that was saved
/// without optimizer and slots. Strategy::host() and layers for serving save such
/// tables.
enum class MissingSlots {
  /// The load is refused.
  kError,
  /// The rows are loaded, and the slots keep their values. In a new layer, these
  /// are the initial values. Slots of another optimizer are still refused.
  /// The step counter is the one that was saved, and gradients that were being
  /// collected are dropped.
  kKeep
};

// snippet: tests/docs/reference_engine_test.cpp LoadOptions
/// What a load takes from a checkpoint or an archive. By default, it takes everything,
/// and names, shapes, optimizers and slots must agree with those of the layer.
///
///   // The model now has more users, and another table, which keeps its values.
///   embedding->load_checkpoint(
///       "run/checkpoints", {.tables = {"users"}, .grown = true});
struct LoadOptions {
  /// If not empty, only the tables with these names are loaded, and the layer keeps
  /// its step counter and seed.
  std::vector<std::string> tables = {};
  /// If false, only rows are loaded. Slots, step counter and seed stay as they are.
  bool slots = true;
  /// Whether a table may have more rows than were saved. The additional rows keep their
  /// values. In a new layer, these are the initial values.
  bool grown = false;
  /// If true, rows and slots that were saved in another TableConfig::dtype or slot_dtype are
  /// rounded to the nearest numbers of the table's own dtypes. The load may need memory for
  /// the saved rows meanwhile. If false, another dtype is an error.
  bool convert_rows = false;
  /// The name of a checkpoint in the directory, as list_checkpoints() returns it. If
  /// empty, the newest checkpoint is loaded.
  std::string checkpoint = {};
  /// Reads what CheckpointOptions::extra wrote. The function runs after the tables have
  /// been loaded, and they stay loaded if it throws. It must not call the layer or engine
  /// that loads. If the tables are sharded, every rank runs it.
  std::function<void(torch::serialize::InputArchive&)> extra = {};
};
static_assert(std::is_aggregate_v<LoadOptions>);

}  // namespace tessera
