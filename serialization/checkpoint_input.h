// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/manifest.h"
#include "src/common/files.h"
#include "src/kernels/storage.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// These functions read the files of a checkpoint.

/// A file of a checkpoint that is open for reading. Errors begin with `where`, which must
/// outlive the file.
class InputFile {
 public:
  InputFile(std::filesystem::path path, const std::string& where);

  int64_t size() const;

  /// Checks the size before it allocates memory, because a sparse file may have any size.
  std::string read_all(int64_t max_bytes) const;

  void read(int64_t begin, int64_t bytes, char* to) const;

 private:
  void check(bool is_valid, const char* problem, std::string_view reason) const;

  std::filesystem::path path_;
  const std::string& where_;
  FileDescriptor descriptor_;
};

/// Some chunks of a file that are compared one after the other.
struct ChunkRange {
  std::filesystem::path path;
  const ManifestFile* file = nullptr;
  int64_t first_chunk = 0;
  int64_t end_chunk = 0;
};

/// Adds all chunks of a file.
/// Errors:  c10::ValueError if the file has another size than its entry.
void append_ranges(
    const std::filesystem::path& path,
    const ManifestFile& file,
    const std::string& where,
    std::vector<ChunkRange>& ranges);

/// Compares the chunks with their checksums, in parallel.
/// Errors:  c10::ValueError naming file and bytes.
void check_ranges(
    const std::vector<ChunkRange>& ranges,
    const std::string& where);

/// The requested rows that a part has: those with the indices first, first + stride, ...
/// below `end` in the list of requested rows.
struct CommonRows {
  int64_t first = 0;
  int64_t end = 0;
  int64_t stride = 1;
};

CommonRows find_common(
    const ManifestPart& part,
    kernels::RowNumbers rows,
    int64_t count);

/// Reads the requested rows that are in the files of `tensor`. rows[0] to rows[count - 1]
/// are the numbers of the requested rows, counted like ManifestPart::begin.
void read_parts(
    const std::filesystem::path& folder,
    const ManifestTensor& tensor,
    kernels::RowNumbers rows,
    int64_t count,
    const std::string& where,
    char* to);

/// All entries of a tensor [n] of the type T.
/// Errors:  as read_parts().
template <class T>
std::vector<T> read_vector(
    const std::filesystem::path& folder,
    const ManifestTensor& tensor,
    const std::string& where) {
  std::vector<T> values(tensor.shape[0]);
  read_parts(
      folder,
      tensor,
      {},
      tensor.shape[0],
      where,
      reinterpret_cast<char*>(values.data()));
  return values;
}

}  // namespace tessera
