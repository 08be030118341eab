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
  /// Every n-th checkpoint is full; those between hold the rows that have
  /// changed since the one before. 1: all are full. Tables split by
  /// RowSplit::kMod are always saved whole. Changed rows are found by a checksum
  /// of each row, whoever wrote them. It takes 8 bytes of memory per row, and
  /// each checkpoint reads all tables from memory.
  int64_t full_every = 1;
  /// Rows of one table go to several files of at most this size, >= 1.
  int64_t file_bytes = int64_t{1} << 30;
  /// Saves what belongs to the tables, such as the dense layers and their
  /// optimizer, in the same checkpoint. Small: it is held in memory. Must not
  /// call the layer or engine that saves. On shards, rank 0 alone runs it.
  std::function<void(torch::serialize::OutputArchive&)> extra = {};
};
static_assert(std::is_aggregate_v<CheckpointOptions>);

/// What a load does with a table that was saved without optimizer and slots, as
/// Strategy::host() and layers for serving save them, when the layer keeps slots
/// for it.
enum class MissingSlots {
  /// Refuses it.
  kError,
  /// Takes its rows, and its slots stay as they are: the initial ones, in a new
  /// layer. The slots of another optimizer are refused all the same.
  kKeep
};

/// What a load takes from a checkpoint or an archive. By default all of it;
/// then names, shapes, optimizers and slots must agree.
struct LoadOptions {
  /// Only these tables, by name; the layer keeps its step counter and seed.
  std::vector<std::string> tables = {};
  /// No: rows alone; slots, step counter and seed stay as they are.
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
