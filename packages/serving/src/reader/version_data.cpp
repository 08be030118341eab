// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/reader/version_data.h"

#include "serialization/mapped_file.h"
#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/checksum.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <utility>

namespace tessera::serving {

namespace {

struct Bytes {
  std::span<const std::byte> data = {};
  std::shared_ptr<const void> owner = {};
};

std::string in_brackets(const std::string& where, const std::string& path) {
  return fmt::format("{} {}:", where, path);
}

// Reads a file into memory. A mapping of it would end the process if another one shortened
// the file. `limit` is the largest number of bytes.
Bytes read_file(
    const std::string& path,
    int64_t limit,
    const std::string& where) {
  const auto [file, size] = open_file(path, where);
  TESSERA_CHECK_VALUE(
      static_cast<int64_t>(size) <= limit,
      "{} expected a file of at most {} bytes at '{}', but got {} bytes. It is damaged, or not of a Publisher.",
      where,
      limit,
      path,
      size);
  constexpr size_t kHugePage = size_t{1} << 21;
  const size_t alignment = size >= kHugePage ? kHugePage : 64;
  void* memory =
      std::aligned_alloc(alignment, (size + alignment) / alignment * alignment);
  TESSERA_CHECK(
      memory != nullptr,
      "{} the {} bytes of '{}' need more memory than the system has free. Free memory, or publish fewer rows.",
      where,
      size,
      path);
  std::shared_ptr<void> owner(memory, std::free);
  if (size >= kHugePage) {
    // The end has small pages, because the system would clear a whole huge page for it.
    ::madvise(memory, size / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
  auto* to = static_cast<std::byte*>(memory);
  size_t done = 0;
  while (done < size) {
    const ssize_t count = ::pread(
        file.number(), to + done, size - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    check_read(count >= 0, path, where);
    TESSERA_CHECK_VALUE(
        count > 0,
        "{} '{}' became shorter while it was read. Try again.",
        where,
        path);
    done += static_cast<size_t>(count);
  }
  return {.data = {to, size}, .owner = std::move(owner)};
}

std::string read_text(
    const std::string& path,
    int64_t limit,
    const std::string& where) {
  const Bytes bytes = read_file(path, limit, where);
  return {reinterpret_cast<const char*>(bytes.data.data()), bytes.data.size()};
}

Bytes map_file(const std::string& path) {
  auto file = std::make_shared<MappedFile>(path, kReader);
  const std::span<const std::byte> data(
      reinterpret_cast<const std::byte*>(file->data()), file->size());
  return {.data = data, .owner = std::move(file)};
}

// Copies the dense weights of a version that is not a base, and returns their old pages to
// the system. Later versions of the chain keep the data for its rows, but do not need its
// dense weights.
void move_dense(VersionData& version) {
  size_t bytes = 0;
  for (const DenseFile& dense : version.file.dense) {
    bytes += static_cast<size_t>(dense.values.bytes);
  }
  const auto copy = std::make_shared<std::vector<std::byte>>();
  copy->reserve(bytes);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (const DenseFile& dense : version.file.dense) {
    const auto values = version.bytes(dense.values);
    version.dense.emplace_back(copy->data() + copy->size(), values.size());
    copy->insert(copy->end(), values.begin(), values.end());
  }
  // Weights may share a section.
  for (const DenseFile& dense : version.file.dense) {
    const auto values = version.bytes(dense.values);
    void* first = const_cast<std::byte*>(values.data());
    size_t size = values.size();
    if (std::align(page, page, first, size) != nullptr) {
      ::madvise(first, size / page * page, MADV_DONTNEED);
    }
  }
  version.dense_owner = copy;
}

void check_section(
    const VersionData& version,
    const Section& section,
    const std::string& what,
    const std::string& where) {
  const std::string xxh3 = checksum_of(version.text(section));
  TESSERA_CHECK_VALUE(
      xxh3 == section.xxh3,
      "{} the {} at byte {} have the checksum {}, but {} names {}. The file is damaged.",
      where,
      what,
      section.offset,
      xxh3,
      kVersionFile,
      section.xxh3);
}

}  // namespace

VersionLink read_current(const std::filesystem::path& directory) {
  const std::string path = (directory / kCurrentFile).string();
  return link_from_text(
      read_text(path, kMaxLinkBytes, kReader), in_brackets(kReader, path));
}

VersionText read_version_file(
    const std::filesystem::path& directory,
    int64_t version,
    const std::optional<std::string>& xxh3,
    const std::string& where) {
  const std::string path =
      (directory / version_name(version) / kVersionFile).string();
  const std::string text = read_text(path, kMaxVersionBytes, where);
  const std::string in_file = in_brackets(where, path);
  VersionText result{
      .file = version_from_text(text, in_file), .xxh3 = checksum_in(text)};
  TESSERA_CHECK_VALUE(
      result.file.version == version && (!xxh3 || *xxh3 == result.xxh3),
      "{} expected version {} with the checksum {}, but got version {} with {}. The file is damaged, or of another training.",
      in_file,
      version,
      xxh3.value_or("of its text"),
      result.file.version,
      result.xxh3);
  return result;
}

int64_t last_change(const std::filesystem::path& directory) {
  // File times advance in steps of some milliseconds, so two changes may have the same time.
  constexpr int64_t kMaxTick = 2'000'000'000;
  const auto nanoseconds = [](const timespec& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  int64_t last = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end;
       entry != end;
       entry.increment(error)) {
    if (version_number(entry->path().filename().string())) {
      for (const char* name : {"", kVersionFile, kDataFile}) {
        struct stat status = {};
        (void)::stat((entry->path() / name).c_str(), &status);
        last = std::max(last, nanoseconds(status.st_ctim));
      }
    }
  }
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return last + kMaxTick > nanoseconds(now) ? nanoseconds(now) : last;
}

VersionData read_version(
    const std::filesystem::path& directory,
    VersionText text,
    DataPlace place) {
  VersionData result{std::move(text)};
  const VersionFile& file = result.file;
  const std::string path =
      (directory / version_name(file.version) / kDataFile).string();
  Bytes bytes = file.is_base() && place == DataPlace::kMapped
      ? map_file(path)
      : read_file(path, file.data_bytes, kReader);
  result.data = bytes.data;
  result.owner = std::move(bytes.owner);
  const std::string in_file = in_brackets(kReader, path);
  TESSERA_CHECK_VALUE(
      std::ssize(result.data) == file.data_bytes,
      "{} expected {} bytes, but got {}. The file is damaged.",
      in_file,
      file.data_bytes,
      result.data.size());
  for (const TableFile& table : file.tables) {
    check_section(result, table.rows, "rows of table " + table.name, in_file);
    if (table.numbers) {
      check_section(
          result, *table.numbers, "numbers of table " + table.name, in_file);
    }
    if (table.removed) {
      check_section(
          result, *table.removed, "removed keys of " + table.name, in_file);
    }
  }
  for (const DenseFile& dense : file.dense) {
    check_section(result, dense.values, "values of " + dense.name, in_file);
  }
  for (const AttachedFile& attached : file.files) {
    check_section(result, attached.bytes, "bytes of " + attached.name, in_file);
  }
  if (!file.is_base()) {
    move_dense(result);
    return result;
  }
  for (const DenseFile& dense : file.dense) {
    result.dense.push_back(result.bytes(dense.values));
  }
  result.dense_owner = result.owner;
  return result;
}

}  // namespace tessera::serving
