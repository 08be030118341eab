// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_input.h"

#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/tables/table_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <numeric>
#include <utility>

namespace tessera {

namespace fs = std::filesystem;

InputFile::InputFile(fs::path path, const std::string& where)
    : path_(std::move(path)),
      where_(where),
      descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  check(descriptor_.is_open(), "can't be opened", std::strerror(errno));
}

int64_t InputFile::size() const {
  struct stat status {};
  const bool is_read = ::fstat(descriptor_.number(), &status) == 0;
  check(is_read, "can't be read", std::strerror(errno));
  check(S_ISREG(status.st_mode), "can't be read", "it is not a regular file");
  return status.st_size;
}

std::string InputFile::read_all(int64_t max_bytes) const {
  const int64_t bytes = size();
  check(
      bytes <= max_bytes,
      "is too large",
      fmt::format("expected at most {} bytes, but got {}", max_bytes, bytes));
  std::string text;
  try {
    text.resize(bytes);
  } catch (const std::bad_alloc&) {
    check(
        false,
        "is too large",
        fmt::format("its {} bytes need more memory than there is", bytes));
  }
  read(0, bytes, text.data());
  return text;
}

void InputFile::read(int64_t begin, int64_t bytes, char* to) const {
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_.number(), to, bytes, begin);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    check(got >= 0, "can't be read", std::strerror(errno));
    check(got > 0, "is too short", "the file has ended");
    begin += got;
    to += got;
    bytes -= got;
  }
}

void InputFile::check(
    bool is_valid,
    const char* problem,
    std::string_view reason) const {
  TESSERA_CHECK_VALUE(
      is_valid,
      "{} '{}' {}: {}. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
      where_,
      path_.string(),
      problem,
      reason);
}

namespace {

// With ranges of this many chunks, the system reads ahead. It would not do so if threads
// took turns chunk by chunk.
constexpr int64_t kChunksPerRange = 32;

void check_range(const ChunkRange& range, const std::string& where) {
  const InputFile input(range.path, where);
  // All chunks share this buffer, because the system maps and unmaps such large blocks.
  std::string bytes;
  for (int64_t i = range.first_chunk; i < range.end_chunk; ++i) {
    const int64_t begin = i * kChunkBytes;
    bytes.resize(std::min(kChunkBytes, range.file->bytes - begin));
    input.read(begin, static_cast<int64_t>(bytes.size()), bytes.data());
    TESSERA_CHECK_VALUE(
        checksum_of(bytes) == range.file->xxh3[i],
        "{} '{}': the bytes [{}, {}) do not match their checksum. The file is damaged. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
        where,
        range.path.string(),
        begin,
        begin + static_cast<int64_t>(bytes.size()));
  }
}

}  // namespace

void append_ranges(
    const fs::path& path,
    const ManifestFile& file,
    const std::string& where,
    std::vector<ChunkRange>& ranges) {
  const int64_t size = InputFile(path, where).size();
  TESSERA_CHECK_VALUE(
      size == file.bytes,
      "{} '{}' must have {} bytes, but has {}. The file is damaged. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
      where,
      path.string(),
      file.bytes,
      size);
  const auto chunks = static_cast<int64_t>(file.xxh3.size());
  for (int64_t chunk = 0; chunk < chunks; chunk += kChunksPerRange) {
    ranges.push_back(
        {.path = path,
         .file = &file,
         .first_chunk = chunk,
         .end_chunk = std::min(chunks, chunk + kChunksPerRange)});
  }
}

void check_ranges(
    const std::vector<ChunkRange>& ranges,
    const std::string& where) {
  int64_t bytes = 0;
  for (const ChunkRange& range : ranges) {
    bytes += (range.end_chunk - range.first_chunk - 1) * kChunkBytes + 1;
  }
  run_tasks(static_cast<int64_t>(ranges.size()), bytes, [&](int64_t i) {
    check_range(ranges[i], where);
  });
}

CommonRows find_common(
    const ManifestPart& part,
    kernels::RowNumbers rows,
    int64_t count) {
  const LocalRows requested{.numbers = rows, .count = count};
  CommonRows common{
      .first = requested.count_before(part.begin),
      .end = requested.count_before(part.end),
      .stride = part.step / std::gcd(part.step, rows.step)};
  // Remainders repeat after `stride` rows. If none of these rows is in the part, no row is.
  const int64_t last = std::min(common.end, common.first + common.stride);
  while (common.first < last &&
         (rows[common.first] - part.begin) % part.step != 0) {
    ++common.first;
  }
  return common.first < last ? common : CommonRows{};
}

void read_parts(
    const fs::path& folder,
    const ManifestTensor& tensor,
    kernels::RowNumbers rows,
    int64_t count,
    const std::string& where,
    char* to) {
  const int64_t row_bytes = tensor.row_bytes();
  for (const ManifestPart& part : tensor.parts) {
    const CommonRows common = find_common(part, rows, count);
    if (common.first >= common.end) {
      continue;
    }
    const InputFile file(folder / part.file.name, where);
    const auto entry_of = [&](int64_t i) {
      return (rows[i] - part.begin) / part.step;
    };
    if (rows.step == part.step) {
      file.read(
          entry_of(common.first) * row_bytes,
          (common.end - common.first) * row_bytes,
          to + common.first * row_bytes);
      continue;
    }
    // The entries [begin, end) are in memory.
    int64_t begin = 0;
    int64_t end = 0;
    std::string chunk;
    for (int64_t i = common.first; i < common.end; i += common.stride) {
      const int64_t entry = entry_of(i);
      if (entry >= end) {
        begin = entry;
        end = std::min(
            part.count(),
            begin + std::max<int64_t>(1, kChunkBytes / row_bytes));
        chunk.resize((end - begin) * row_bytes);
        file.read(begin * row_bytes, std::ssize(chunk), chunk.data());
      }
      std::memcpy(
          to + i * row_bytes,
          chunk.data() + (entry - begin) * row_bytes,
          row_bytes);
    }
  }
}

}  // namespace tessera
