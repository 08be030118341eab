// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/serving/src/format/version_file.h"
#include "serialization/disk.h"
#include "serialization/file_lock.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::serving {

/// What the messages of a Publisher begin with.
inline constexpr const char* kPublisher = "[Publisher]";

/// The rows of one table that a version has.
struct TableContent {
  /// The entry of the table in the version, without its sections.
  TableFile file = {};
  int64_t row_bytes = 0;
  /// Writes rows [begin, end) of the content to `out`.
  std::function<void(int64_t begin, int64_t end, std::byte* out)> copy = {};
  /// Whether `copy` reads copies, so that the table may change.
  bool is_copy = false;
  /// The bytes of TableFile::numbers and TableFile::removed.
  std::optional<std::string> numbers = {};
  std::optional<std::string> removed = {};
};

/// The memory of the values.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {
      reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

struct DenseContent {
  DenseFile file = {};
  std::string values = {};
};

/// The content of a version.
struct VersionContent {
  /// The text of version.json without tables, dense values and files.
  VersionFile file = {};
  std::vector<TableContent> tables = {};
  std::vector<DenseContent> dense = {};
  /// The names and bytes of the attached files.
  std::vector<std::pair<std::string, std::string>> files = {};
};

/// The directory of a Publisher. It stays locked while this object lives.
class PublishedDirectory {
 public:
  /// Makes and locks the directory, and removes what a crash has left in it.
  explicit PublishedDirectory(const std::string& path);

  /// The version that CURRENT names.
  const std::optional<VersionLink>& current() const {
    return current_;
  }
  /// The number of the next version.
  int64_t next_version() const {
    return next_version_;
  }

  /// Errors:  c10::Error if another Publisher can lock the directory, because it was moved
  ///          or because the lock file was removed.
  void check_lock() const;

  /// Whether all versions from `base` to the current one are there, so that a reader can
  /// read a version that builds on them.
  bool has_chain(int64_t base) const;

  /// Writes a version and makes CURRENT name it. Returns the number of bytes of the
  /// version's data. After an error, CURRENT still names the previous version.
  int64_t write(const VersionContent& content);

  /// Removes old versions. Keeps the newest `count` versions, all versions that are at
  /// most `seconds` old, the current version, and the versions that these build on.
  void keep(int64_t count, double seconds);

 private:
  struct Written {
    int64_t base = 0;
    std::filesystem::file_time_type time = {};
  };

  void remove_version(int64_t version);

  std::filesystem::path path_;
  Disk disk_{"[Publisher::publish]"};
  std::optional<FileLock> lock_;
  std::optional<VersionLink> current_;
  int64_t next_version_ = 1;
  std::map<int64_t, Written> written_;
};

}  // namespace tessera::serving
