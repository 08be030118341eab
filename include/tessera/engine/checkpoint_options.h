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

/// How TPUEmbedding::save_checkpoint() writes.
struct CheckpointOptions {
  /// Complete checkpoints to keep, >= 1, besides those that they build on.
  int64_t keep_last = 2;
  /// Every n-th checkpoint is full. The checkpoints between hold only the rows that
  /// have changed since the previous one. With 1, all checkpoints are full. Tables
  /// split by RowSplit::kMod are always saved in full. A checksum of each row finds
  /// the changed rows, whatever has written them. The checksums take 8 bytes of
  /// memory per row, and each checkpoint reads all tables from memory.
  int64_t full_every = 1;
  /// Rows of one table go to several files of at most this size, >= 1.
  int64_t file_bytes = int64_t{1} << 30;
  /// Saves what belongs to the tables, such as the dense layers and their
  /// optimizer, in the same checkpoint. Small: it is held in memory. Must not
  /// call the layer or engine that saves. On shards, rank 0 alone runs it.
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

/// What a load takes from a checkpoint or an archive. By default all of it;
/// then names, shapes, optimizers and slots must agree.
struct LoadOptions {
  /// If not empty, only the tables with these names are loaded, and the layer keeps
  /// its step counter and seed.
  std::vector<std::string> tables = {};
  /// If false, only rows are loaded. Slots, step counter and seed stay as they are.
  bool slots = true;
  /// Whether a table may have more rows than were saved. The further ones keep
  /// their values: the initial ones, in a new layer.
  bool grown = false;
  /// Of a checkpoint directory: which one, as list_checkpoints() names it.
  /// Empty: the newest.
  std::string checkpoint = {};
  /// Reads what CheckpointOptions::extra wrote, after the tables, which stay
  /// loaded when it throws. Must not call the layer or engine that loads. On
  /// shards, every rank runs it.
  std::function<void(torch::serialize::InputArchive&)> extra = {};
};
static_assert(std::is_aggregate_v<LoadOptions>);

}  // namespace tessera
