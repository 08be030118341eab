// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_files.h"

#include "src/common/checksum.h"
#include "src/kernels/prefetch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace tessera {

void CheckpointFiles::write_bytes(ManifestFile& entry, std::string_view bytes)
    const {
  OutputFile file = disk_.create(folder_ / entry.name);
  entry.bytes = static_cast<int64_t>(bytes.size());
  write_chunks(file, bytes, entry);
  disk_.sync(file);
}

void CheckpointFiles::write_rows(ManifestFile& entry, const RowBytes& rows)
    const {
  const int64_t bytes = rows.count * rows.row_bytes;
  if (rows.rows == nullptr) {
    write_bytes(entry, {rows.data, static_cast<size_t>(bytes)});
    return;
  }
  OutputFile file = disk_.create(folder_ / entry.name);
  entry.bytes = bytes;
  // The processor can't predict rows that are in the order of their keys' hashes.
  const int64_t ahead = kernels::prefetch_distance(rows.row_bytes);
  std::vector<char> buffer(std::min(bytes, kChunkBytes) + rows.row_bytes);
  size_t size = 0;
  for (int64_t i = 0; i < rows.count; ++i) {
    if (i + ahead < rows.count) {
      kernels::prefetch_row(rows.data, rows.row_bytes, rows.rows[i + ahead]);
    }
    std::memcpy(
        buffer.data() + size,
        rows.data + rows.rows[i] * rows.row_bytes,
        rows.row_bytes);
    size += rows.row_bytes;
    if (size >= kChunkBytes) {
      // All chunks except the last are written whole.
      const size_t ready = size / kChunkBytes * kChunkBytes;
      write_chunks(file, {buffer.data(), ready}, entry);
      size -= ready;
      std::memmove(buffer.data(), buffer.data() + ready, size);
    }
  }
  write_chunks(file, {buffer.data(), size}, entry);
  disk_.sync(file);
}

void CheckpointFiles::write_chunks(
    OutputFile& file,
    std::string_view bytes,
    ManifestFile& entry) const {
  for (; !bytes.empty();
       bytes.remove_prefix(std::min<size_t>(bytes.size(), kChunkBytes))) {
    const std::string_view chunk = bytes.substr(0, kChunkBytes);
    entry.xxh3.push_back(checksum_of(chunk));
    disk_.write(file, chunk.data(), chunk.size());
  }
}

}  // namespace tessera
