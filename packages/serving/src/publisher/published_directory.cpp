// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/published_directory.h"

#include "serialization/mapped_file.h"
#include "src/common/active_kernels.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"
#include "src/common/checksum.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string_view>

namespace tessera::serving {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLockFile = ".publisher_lock";
constexpr std::string_view kHiddenPrefix = ".tmp_";

// Writes sections one after the other and computes their checksums.
class DataFile {
 public:
  DataFile(OutputFile file, Disk& disk) : file_(std::move(file)), disk_(disk) {}

  void begin_section() {
    pad((kSectionAlignment - offset_ % kSectionAlignment) % kSectionAlignment);
    begin_ = offset_;
    checksum_.emplace();
  }
  void add(const void* data, int64_t size) {
    checksum_->add(data, static_cast<size_t>(size));
    write(data, size);
  }
  Section end_section() const {
    return {
        .offset = begin_,
        .bytes = offset_ - begin_,
        .xxh3 = checksum_->digits()};
  }
  Section section(std::string_view bytes) {
    begin_section();
    add(bytes.data(), std::ssize(bytes));
    return end_section();
  }
  /// Returns the bytes of the file.
  int64_t finish() {
    pad(kernels::kReadAfterRow);
    disk_.sync(file_);
    return offset_;
  }

 private:
  void pad(int64_t size) {
    const std::string zeros(static_cast<size_t>(size), '\0');
    write(zeros.data(), size);
  }
  void write(const void* data, int64_t size) {
    if (size > 0) {
      disk_.write(file_, data, static_cast<size_t>(size));
      offset_ += size;
    }
  }

  OutputFile file_;
  Disk& disk_;
  int64_t offset_ = 0;
  int64_t begin_ = 0;
  std::optional<Checksum> checksum_;
};

Section write_rows(const TableContent& table, DataFile& data) {
  constexpr int64_t kPartBytes = int64_t{4} << 20;
  const int64_t part_rows = std::max<int64_t>(1, kPartBytes / table.row_bytes);
  std::vector<std::byte> part(static_cast<size_t>(
      std::min(part_rows, table.file.count) * table.row_bytes));
  data.begin_section();
  for (int64_t begin = 0; begin < table.file.count; begin += part_rows) {
    const int64_t end = std::min(table.file.count, begin + part_rows);
    table.copy(begin, end, part.data());
    data.add(part.data(), (end - begin) * table.row_bytes);
  }
  return data.end_section();
}

VersionFile write_data(const VersionContent& content, DataFile& data) {
  VersionFile file = content.file;
  for (const TableContent& table : content.tables) {
    TableFile& in_file = file.tables.emplace_back(table.file);
    in_file.rows = write_rows(table, data);
    file.format_version = std::max(
        file.format_version, version_with(format_from_string(in_file.format)));
    if (table.numbers) {
      in_file.numbers = data.section(*table.numbers);
    }
    if (table.removed) {
      in_file.removed = data.section(*table.removed);
    }
  }
  for (const DenseContent& dense : content.dense) {
    file.dense.emplace_back(dense.file).values = data.section(dense.values);
  }
  for (const auto& [name, bytes] : content.files) {
    file.files.push_back({.name = name, .bytes = data.section(bytes)});
  }
  file.data_bytes = data.finish();
  return file;
}

std::optional<VersionLink> read_link(
    const fs::path& path,
    const std::string& where) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return std::nullopt;
  }
  try {
    const MappedFile file(path.string(), where);
    return link_from_text(
        file.text(), fmt::format("{} {}:", where, path.string()));
  } catch (const c10::ValueError& error) {
    TORCH_WARN(
        error.what_without_backtrace(), " The next version replaces it.");
    return std::nullopt;
  }
}

}  // namespace

PublishedDirectory::PublishedDirectory(const std::string& path) : path_(path) {
  Disk disk(kPublisher);
  disk.make_directory(path_);
  lock_.emplace(FileLock::per_holder(
      (path_ / kLockFile).string(),
      kPublisher,
      "Another Publisher writes to this directory. Stop it, or choose another directory."));
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kHiddenPrefix)) {
      leftovers.push_back(entry.path());
    } else if (const auto version = version_number(name)) {
      Written& written = written_[*version];
      written = {.base = *version, .time = entry.last_write_time(error)};
      try {
        const MappedFile file(
            (entry.path() / kVersionFile).string(), kPublisher);
        written.base = version_from_text(file.text(), kPublisher).base;
      } catch (const c10::Error&) {
        // No version can build on a damaged one.
      }
    }
  }
  for (const fs::path& leftover : leftovers) {
    disk.remove(leftover);
  }
  current_ = read_link(path_ / kCurrentFile, kPublisher);
  next_version_ = 1 +
      std::max(written_.empty() ? 0 : written_.rbegin()->first,
               current_ ? current_->version : 0);
}

void PublishedDirectory::check_lock() const {
  const std::string lock = (path_ / kLockFile).string();
  TESSERA_CHECK(
      lock_->is_at(lock),
      "{} '{}' is no longer the file that this Publisher has locked: its directory was moved, or the file was removed. Another Publisher may write to '{}'. Stop one of them, and make a new Publisher for the directory.",
      disk_.where(),
      lock,
      path_.string());
}

bool PublishedDirectory::has_chain(int64_t base) const {
  return std::all_of(
      written_.lower_bound(base), written_.end(), [&](const auto& version) {
        const fs::path folder = path_ / version_name(version.first);
        std::error_code ignored;
        return fs::exists(folder / kVersionFile, ignored) &&
            fs::exists(folder / kDataFile, ignored);
      });
}

int64_t PublishedDirectory::write(const VersionContent& content) {
  const std::string name = version_name(content.file.version);
  const fs::path hidden = path_ / (std::string(kHiddenPrefix) + name);
  std::string xxh3;
  int64_t bytes = 0;
  check_lock();
  try {
    disk_.make_directory(hidden);
    DataFile data(disk_.create(hidden / kDataFile), disk_);
    const VersionFile file = write_data(content, data);
    bytes = file.data_bytes;
    const std::string text = to_text(file);
    // A text that can't be read should fail here, and not in the readers.
    version_from_text(text, disk_.where());
    xxh3 = checksum_in(text);
    OutputFile text_file = disk_.create(hidden / kVersionFile);
    disk_.write(text_file, text.data(), text.size());
    disk_.sync(text_file);
    disk_.sync_directory(hidden);
    check_lock();  // Writing may have taken long.
    disk_.rename(hidden, path_ / name);
    disk_.sync_directory(path_);
  } catch (...) {
    // Without the lock, the folder may belong to another Publisher.
    if (lock_->is_at((path_ / kLockFile).string())) {
      std::error_code ignored;
      fs::remove_all(hidden, ignored);
    }
    throw;
  }
  // The number is used, even if the next lines fail.
  next_version_ = content.file.version + 1;
  written_[content.file.version] = {
      .base = content.file.base, .time = fs::file_time_type::clock::now()};
  const VersionLink link{.version = content.file.version, .xxh3 = xxh3};
  try {
    AtomicFile current((path_ / kCurrentFile).string(), disk_.where());
    const std::string text = to_text(link);
    current.write(text.data(), text.size());
    current.commit();
  } catch (const c10::Error&) {
    // The write may have failed after its rename. Then CURRENT has the new version.
    if (read_link(path_ / kCurrentFile, disk_.where()) != link) {
      remove_version(content.file.version);
      throw;
    }
  }
  current_ = link;
  return bytes;
}

void PublishedDirectory::keep(int64_t count, double seconds) {
  check_lock();
  const auto now = fs::file_time_type::clock::now();
  // The versions from a base on stay together.
  int64_t oldest_base = current_ ? current_->version : 0;
  if (current_ && written_.contains(current_->version)) {
    oldest_base = written_.at(current_->version).base;
  }
  auto newer = std::ssize(written_);
  for (const auto& [version, written] : written_) {
    const double age =
        std::chrono::duration<double>(now - written.time).count();
    if (newer-- <= count || age <= seconds) {
      oldest_base = std::min(oldest_base, written.base);
    }
  }
  std::exception_ptr error;
  while (!written_.empty() && written_.begin()->first < oldest_base) {
    try {
      remove_version(written_.begin()->first);
    } catch (const c10::Error&) {
      error = std::current_exception();
    }
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

void PublishedDirectory::remove_version(int64_t version) {
  // After the rename, a reader that opens the version finds nothing, instead of a part.
  const std::string name = version_name(version);
  const fs::path hidden = path_ / (std::string(kHiddenPrefix) + name);
  written_.erase(version);
  std::error_code ignored;
  if (fs::exists(path_ / name, ignored)) {
    disk_.rename(path_ / name, hidden);
  }
  disk_.remove(hidden);
}

}  // namespace tessera::serving
