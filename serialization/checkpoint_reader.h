// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/load_plan.h"
#include "serialization/manifest.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/embedding_state.h"

#include <tessera/serialization/checkpoint.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

/// A checkpoint's manifest.
struct CheckpointLink {
  std::string name = {};
  Manifest manifest = {};
  std::string xxh3 = {};  // of the manifest's text
};

/// Errors:  c10::ValueError beginning with `where`, when it can't be read or is
///          damaged.
CheckpointLink read_link(
    const std::filesystem::path& directory,
    const std::string& checkpoint,
    const std::string& where);

/// A checkpoint and those that it builds on, the full one first.
/// Errors:  as above, and when they do not belong together.
std::vector<CheckpointLink> read_chain(
    const std::filesystem::path& directory,
    const std::string& checkpoint,
    const std::string& where);

/// `checkpoint`, or the newest when that is empty.
/// Errors:  c10::ValueError when there is none, or none of this name.
std::string choose_checkpoint(
    const std::string& directory,
    const std::string& checkpoint);

/// A checkpoint together with those that it builds on.
class CheckpointReader {
 public:
  /// Reads the manifests.
  /// Errors:  c10::ValueError naming file and reason.
  CheckpointReader(const std::string& directory, const std::string& checkpoint);

  const SavedState& saved() const {
    return saved_;
  }
  /// The checksum of its manifest.
  const std::string& xxh3() const {
    return chain_.back().xxh3;
  }

  /// Raises what loading by `plan` would raise. Compares the files that it needs
  /// with their checksums, in parallel, and reads the collected gradients into it.
  /// Errors:  c10::ValueError naming the file and its bytes, or the table whose
  ///          collected gradients are damaged.
  void verify(const EmbeddingState& state, LoadPlan& plan);

  /// Whether the table's files hold every `step`-th row, and no increment does.
  bool has_step(size_t table, int64_t step) const;

  /// `count` rows of a tensor to `to`. Only after verify(), which the bytes are
  /// not compared with again. Several threads at once.
  /// Errors:  c10::ValueError naming the file when it can't be read.
  void read_rows(
      size_t table,
      const std::string& key,
      kernels::RowNumbers rows,
      int64_t count,
      char* to) const;

  /// The collected gradients of gradient_accumulation_steps for the local rows.
  /// Errors:  c10::ValueError when a file can't be read or is damaged.
  AccumulatedGradients read_accumulated(size_t table, const LocalRows& rows)
      const;

  /// The archive of CheckpointOptions::extra.
  /// Errors:  c10::ValueError when there is none, or it is damaged.
  std::string read_extra() const;

 private:
  const ManifestTable& table_of(size_t link, size_t table) const {
    return chain_[link].manifest.tables[table];
  }
  std::filesystem::path folder_of(size_t link) const {
    return directory_ / chain_[link].name;
  }
  // Positions in the chain that hold rows of a table, one with all rows first.
  std::vector<size_t> links_of(size_t table) const;
  void read_touched(size_t link, size_t table);
  // A file of the newest checkpoint, after comparing its checksums.
  std::string read_whole(const ManifestFile& file) const;

  std::filesystem::path directory_;
  std::vector<CheckpointLink> chain_;  // the full one first
  // [links][tables], the touched rows of increments that were verified.
  std::vector<std::vector<std::vector<uint32_t>>> touched_;
  SavedState saved_;
};

/// On shards, each rank reads its own rows, whoever wrote them.
/// Errors:  c10::ValueError; everything is compared and verified before the
///          first row changes, on any rank.
void load_checkpoint(
    EmbeddingState& state,
    const std::string& directory,
    const LoadOptions& options);

}  // namespace tessera
