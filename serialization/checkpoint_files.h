// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/disk.h"
#include "serialization/manifest.h"

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

namespace tessera {

/// Rows in memory, in the order in which a file holds them.
struct RowBytes {
  const char* data = nullptr;
  int64_t row_bytes = 0;
  int64_t count = 0;
  /// Which rows of `data`; nullptr: the first `count`.
  const uint32_t* rows = nullptr;
};

/// Writes the files of a checkpoint into its folder, each synced. Several threads may
/// write files at once.
class CheckpointFiles {
 public:
  CheckpointFiles(std::filesystem::path folder, Disk& disk)
      : folder_(std::move(folder)), disk_(disk) {}

  /// Writes the file of this name, and enters its size and checksums.
  void write_bytes(ManifestFile& entry, std::string_view bytes) const;
  void write_rows(ManifestFile& entry, const RowBytes& rows) const;

 private:
  void write_chunks(
      OutputFile& file,
      std::string_view bytes,
      ManifestFile& entry) const;

  std::filesystem::path folder_;
  Disk& disk_;
};

}  // namespace tessera
