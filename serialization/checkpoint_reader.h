// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/load_plan.h"
#include "serialization/manifest.h"
#include "src/embedding_state.h"

#include <tessera/serialization/checkpoint.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Errors:  c10::Error when it can't be read, ValueError when it is damaged.
std::string read_manifest_text(
    const std::filesystem::path& directory,
    const std::string& checkpoint);
Manifest read_manifest(
    const std::filesystem::path& directory,
    const std::string& checkpoint);

/// A checkpoint together with those that it builds on.
class CheckpointReader {
 public:
  /// Reads the manifests. `checkpoint` may be empty: the newest.
  /// Errors:  c10::ValueError naming file and reason.
  CheckpointReader(const std::string& directory, const std::string& checkpoint);

  const SavedState& saved() const {
    return saved_;
  }

  /// Compares all files of some tables with their checksums, in parallel.
  /// Errors:  c10::ValueError naming the file and its bytes.
  void verify(const std::vector<size_t>& tables);

  /// Rows [begin, end) of a tensor to `to`. Only after verify(). Several threads
  /// at once.
  /// Errors:  c10::ValueError naming the file when it can't be read.
  void read_rows(
      size_t table,
      const std::string& key,
      int64_t begin,
      int64_t end,
      char* to) const;

  /// The archive of CheckpointOptions::extra.
  /// Errors:  c10::ValueError when there is none, or it is damaged.
  std::string read_extra() const;

 private:
  // One checkpoint of the chain.
  struct Link {
    std::string name = {};
    Manifest manifest = {};
    std::vector<std::vector<uint32_t>> touched = {};  // [tables]
  };

  std::filesystem::path path_of(const Link& link, const ManifestFile& file)
      const;
  void read_chain(std::string name);
  void check_agree(const Link& link) const;
  void read_touched(Link& link, size_t table);
  // The links that hold rows of a table, the full one first.
  std::vector<const Link*> links_of(size_t table) const;

  std::filesystem::path directory_;
  std::vector<Link> chain_;  // the full one first
  SavedState saved_;
};

/// Errors:  c10::ValueError; everything is compared and verified before the
///          first row changes.
void load_checkpoint(
    EmbeddingState& state,
    const std::string& directory,
    const LoadOptions& options);

}  // namespace tessera
