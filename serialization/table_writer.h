// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/checkpoint_files.h"
#include "serialization/manifest.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_snapshot.h"

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// The content of one data file, and its entry in the manifest.
struct DataFile {
  RowBytes rows = {};
  ManifestFile* entry = nullptr;
};

/// One table in a new checkpoint. It completes the entry of the table in the manifest, and
/// knows which rows this rank writes. If several ranks have the same rows, only the first
/// of them writes these.
///
/// A checkpoint has the keys of a table in the order of their hashes, and their rows and
/// scores in the same order. The high bits of the hash choose the partition, so the keys of
/// the ranks follow each other, and each rank finds its keys in one range, however many
/// ranks have written them.
class TableWriter {
 public:
  /// Makes the entry, without files. It must not move while this object lives.
  TableWriter(EmbeddingState& state, size_t table, ManifestTable& entry);

  /// Chooses the rows or keys that the checkpoint holds. If `has_parent` is true and all
  /// ranks know what has changed since the parent, these are the changed ones, otherwise
  /// all. All rows are also saved if all have changed, or if the rows of the ranks
  /// interleave. `is_tracking` says that the next checkpoint may be an increment. All ranks
  /// must call this.
  void choose_rows(bool has_parent, bool is_tracking);

  /// Adds the files of this rank to the entry, and their contents to `files`. A file has
  /// at most `file_bytes`, but at least one row.
  void add_files(int64_t file_bytes, std::vector<DataFile>& files);

  /// Writes the gradients that this rank has accumulated.
  void write_accumulated(const CheckpointFiles& files);

  /// Adds the files in the entry of another rank.
  void merge(ManifestTable other);

  /// Collects the numbers of the touched rows of all ranks on rank 0, which write_touched()
  /// writes. All ranks must call it.
  void gather_touched();
  void write_touched(const CheckpointFiles& files);

  /// From now on, changes count from this checkpoint. Call it when it is complete.
  void track_changes();

 private:
  bool writes_rows() const;
  bool compares_rows() const;
  void choose_touched();
  void choose_keys(bool has_parent, bool is_tracking);
  std::string file_prefix() const;

  EmbeddingState& state_;
  size_t index_;
  TableState& table_;
  ManifestTable& entry_;
  bool has_parent_ = false;
  std::vector<uint32_t> touched_;  // local rows, ascending
  std::string all_touched_;  // rank 0: the touched rows of all ranks, as bytes

  // Of a key table, in the order of the keys' hashes.
  KeyList keys_;
  std::vector<int64_t> removed_;
  // The counters of the owned partitions, in the memory of the index.
  c10::ArrayRef<uint8_t> sketch_;
  // The state of the keys now, if the next checkpoint may be an increment.
  std::optional<KeySnapshot> snapshot_;

  // The positions of the first touched row or key, the first removed key and the first
  // counter of this rank among those of all ranks.
  int64_t first_ = 0;
  int64_t first_removed_ = 0;
  int64_t first_counter_ = 0;
};

}  // namespace tessera
