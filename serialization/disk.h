// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/files.h"

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace tessera {

/// A file that is open for writing.
struct OutputFile {
  std::filesystem::path path;
  FileDescriptor descriptor;
};

/// The steps by which a checkpoint reaches the disk. They are virtual so that tests can
/// record them, stop at one, or make one fail.
/// Errors:  c10::Error beginning with where(), naming the path, the system's reason and
///          what to do.
class Disk {
 public:
  /// `where` is the function that the user called, such as "[save_checkpoint]".
  explicit Disk(std::string where = "[save_checkpoint]")
      : where_(std::move(where)) {}
  virtual ~Disk() = default;

  const std::string& where() const {
    return where_;
  }

  virtual void make_directory(const std::filesystem::path& path);
  /// Creates a file. It must not exist.
  virtual OutputFile create(const std::filesystem::path& path);
  /// Appends to the file.
  virtual void write(OutputFile& file, const void* data, size_t size);
  /// Returns when the file's content is on the disk.
  virtual void sync(OutputFile& file);
  /// Returns when the names in the directory are on the disk.
  virtual void sync_directory(const std::filesystem::path& path);
  virtual void rename(
      const std::filesystem::path& from,
      const std::filesystem::path& to);
  /// Removes a file, or a folder with everything in it.
  virtual void remove(const std::filesystem::path& path);

 private:
  // If `error` is not set, errno has the reason.
  void check(
      bool is_done,
      const char* action,
      const std::filesystem::path& path,
      std::error_code error = {}) const;

  std::string where_;
};

}  // namespace tessera
