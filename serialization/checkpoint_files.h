// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/disk.h"
#include "serialization/manifest.h"

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

namespace tessera {

/// Rows in memory, in the order in which they go into a file.
struct RowBytes {
  const char* data = nullptr;
  int64_t row_bytes = 0;
  int64_t count = 0;
  /// The numbers of these rows in `data`. nullptr means the first `count` rows.
  const uint32_t* rows = nullptr;
};

/// Writes the files of a checkpoint into its folder and syncs each of them. Several
/// threads may write files at the same time.
class CheckpointFiles {
 public:
  CheckpointFiles(std::filesystem::path folder, Disk& disk)
      : folder_(std::move(folder)), disk_(disk) {}

  /// Writes a file named `entry.name`, and sets its size and checksums in `entry`.
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
