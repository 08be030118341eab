// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/checkpoint_input.h"
#include "serialization/load_plan.h"
#include "serialization/manifest.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/embedding_state.h"

#include <tessera/serialization/checkpoint.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera {

/// A checkpoint in a chain of increments, with its manifest.
struct CheckpointLink {
  std::string name = {};
  Manifest manifest = {};
  std::string xxh3 = {};  // of the manifest's text
};

/// Reads the manifest of a checkpoint.
/// Errors:  c10::ValueError beginning with `where` if it can't be read or is damaged.
CheckpointLink read_link(
    const std::filesystem::path& directory,
    const std::string& checkpoint,
    const std::string& where);

/// Reads the manifests of a checkpoint and of the ones that it builds on. The first is the
/// full checkpoint.
/// Errors:  c10::ValueError as in read_link(), and if the checkpoints do not belong
///          together.
std::vector<CheckpointLink> read_chain(
    const std::filesystem::path& directory,
    const std::string& checkpoint,
    const std::string& where);

/// The public list_checkpoints(), but its errors begin with `where`.
std::vector<std::string> list_checkpoints(
    const std::string& directory,
    const std::string& where);

/// Returns `checkpoint`, or the newest checkpoint if `checkpoint` is empty.
/// Errors:  c10::ValueError beginning with `where` if there is no checkpoint, or none of
///          this name.
std::string choose_checkpoint(
    const std::string& directory,
    const std::string& checkpoint,
    const std::string& where = "[load_checkpoint]");

/// A row of a table that a load copies from an entry of a checkpoint's tensors.
struct RowMove {
  int64_t from = 0;
  uint32_t to = 0;  // local row
};

/// The place of a key's row: an entry of the tensors of a checkpoint in a chain.
struct StoredRow {
  uint32_t link = 0;
  uint32_t entry = 0;
};

/// Reads a checkpoint together with the ones that it builds on. Errors begin with `where`,
/// the function that the user called.
class CheckpointReader {
 public:
  /// Reads the manifests.
  /// Errors:  c10::ValueError naming file and reason.
  CheckpointReader(
      const std::string& directory,
      const std::string& checkpoint,
      std::string where = "[load_checkpoint]");

  const Manifest& saved() const {
    return chain_.back().manifest;
  }
  /// The checksum of the checkpoint's manifest.
  const std::string& xxh3() const {
    return chain_.back().xxh3;
  }

  /// Compares the files that `plan` needs with their checksums, in parallel, and reads
  /// keys and accumulated gradients into `plan`. After this call, loading by `plan`
  /// raises no error, unless files change in the meantime.
  /// Errors:  c10::ValueError naming the file and its bytes, or the table whose keys do
  ///          not fit or whose accumulated gradients are damaged.
  void check_files(const EmbeddingState& state, LoadPlan& plan);

  /// Returns true if each file of the table holds every `step`-th row, and if no increment
  /// has rows of the table.
  bool has_step(size_t table, int64_t step) const;

  /// Reads `count` rows of a tensor into `to`. Call check_files() before, because the
  /// bytes are not compared with their checksums here. Several threads may call it.
  /// Errors:  c10::ValueError naming the file if it can't be read.
  void read_rows(
      size_t table,
      const std::string& key,
      kernels::RowNumbers rows,
      int64_t count,
      char* to) const;

  /// Copies the parameters and slots of a key table to the rows that LoadedKeys::place()
  /// has returned. Call check_files() first.
  /// Errors:  c10::ValueError naming the file if it can't be read.
  void copy_key_rows(
      const LoadPlan::KeyTable& entry,
      TableState& table,
      const std::vector<uint32_t>& rows) const;

  /// Reads the gradients that gradient_accumulation_steps has accumulated for the local
  /// rows of `to`.
  /// Errors:  c10::ValueError if a file can't be read or is damaged.
  AccumulatedGradients read_accumulated(size_t table, const TableState& to)
      const;

  /// Reads the archive of CheckpointOptions::extra.
  /// Errors:  c10::ValueError if there is none, or it is damaged.
  std::string read_extra() const;

 private:
  const ManifestTable& table_of(size_t link, size_t table) const {
    return chain_[link].manifest.tables[table];
  }
  std::filesystem::path folder_of(size_t link) const {
    return directory_ / chain_[link].name;
  }
  // The position of the newest checkpoint in the chain that has all rows of a table. A
  // load reads only this one and the later ones.
  size_t first_link(size_t table) const;
  // The newest checkpoint that has the sketch of a key table.
  size_t link_of_sketch(size_t table) const;
  void read_touched(size_t link, size_t table);
  void append_file(
      size_t link,
      const ManifestFile& file,
      std::vector<ChunkRange>& ranges) const;
  void append_key_files(
      size_t link,
      size_t table,
      std::vector<ChunkRange>& ranges) const;
  void append_row_files(
      const LoadPlan::KeyTable& entry,
      std::vector<ChunkRange>& ranges) const;
  void read_keys(const TableState& table, LoadPlan::KeyTable& entry);
  // Returns the moves from each checkpoint of the chain [links], sorted by RowMove::from.
  // `rows` has the local row of each key. If it is empty, the moves only tell which entries
  // are needed.
  std::vector<std::vector<RowMove>> moves_of(
      const LoadPlan::KeyTable& entry,
      const std::vector<uint32_t>& rows) const;
  // Reads a file of the newest checkpoint and compares it with its checksums.
  std::string read_whole(const ManifestFile& file) const;

  std::string where_;
  std::filesystem::path directory_;
  std::vector<CheckpointLink> chain_;  // the full checkpoint first
  // [links][tables], the touched rows of increments that were verified
  std::vector<std::vector<std::vector<uint32_t>>> touched_;
  // For each table: where the rows of LoadedKeys are.
  std::map<size_t, std::vector<StoredRow>> stored_rows_;
};

/// Loads a checkpoint into `state`. Each rank reads its own rows, whichever rank has
/// written them.
/// Errors:  c10::ValueError beginning with `where`. Everything is compared and verified
///          on all ranks before the first row changes. If files change after that,
///          c10::Error, and then some rows may be loaded.
void load_checkpoint(
    EmbeddingState& state,
    const std::string& directory,
    const LoadOptions& options,
    const std::string& where = "[load_checkpoint]");

}  // namespace tessera
