// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/serving/src/format/version_file.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serving {

/// What most messages of a Reader begin with.
inline constexpr const char* kReader = "[Reader]";

/// Where the bytes of a base are.
enum class DataPlace { kMapped, kInMemory };

/// The content of version.json.
struct VersionText {
  VersionFile file = {};
  std::string xxh3 = {};  // of version.json
};

/// The content of the folder of one version.
struct VersionData : VersionText {
  std::span<const std::byte> data = {};
  std::shared_ptr<const void> owner = {};  // of the bytes

  /// The values of VersionFile::dense. They have an owner of their own, because later
  /// versions keep `owner` but do not need these values.
  std::vector<std::span<const std::byte>> dense = {};
  std::shared_ptr<const void> dense_owner = {};

  std::span<const std::byte> bytes(const Section& section) const {
    return data.subspan(section.offset, section.bytes);
  }
  template <class T>
  std::span<const T> values(const Section& section) const {
    const auto of = bytes(section);
    return {reinterpret_cast<const T*>(of.data()), of.size() / sizeof(T)};
  }
  std::string_view text(const Section& section) const {
    const auto characters = values<char>(section);
    return {characters.data(), characters.size()};
  }
};

/// Reads CURRENT.
/// Errors:  Error naming the path; ValueError for a damaged file.
VersionLink read_current(const std::filesystem::path& directory);

/// Reads only version.json. If `xxh3` is given, it must have this checksum.
VersionText read_version_file(
    const std::filesystem::path& directory,
    int64_t version,
    const std::optional<std::string>& xxh3,
    const std::string& where);

/// The time in nanoseconds of the last change of a version's file. File times are coarse,
/// so two changes may have the same time. So while the last change is less than two
/// seconds ago, each call returns the present time instead.
int64_t last_change(const std::filesystem::path& directory);

/// Reads the data of a version and compares all checksums. The bytes of a base are at
/// `place`, and those of other versions in memory, because they are few.
/// Errors:  Error naming the path; ValueError naming the file and what is damaged.
VersionData read_version(
    const std::filesystem::path& directory,
    VersionText text,
    DataPlace place);

}  // namespace tessera::serving
