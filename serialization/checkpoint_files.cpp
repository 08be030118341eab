// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_files.h"

#include "src/common/checksum.h"

#include <algorithm>
#include <cstddef>
#include <string>

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
  std::string buffer;
  for (int64_t i = 0; i < rows.count; ++i) {
    buffer.append(rows.data + rows.rows[i] * rows.row_bytes, rows.row_bytes);
    // All chunks except the last are written whole.
    const size_t ready = buffer.size() / kChunkBytes * kChunkBytes;
    write_chunks(file, {buffer.data(), ready}, entry);
    buffer.erase(0, ready);
  }
  write_chunks(file, buffer, entry);
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
