// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>

namespace tessera {

/// A file that is being written. Closes itself.
class OutputFile {
 public:
  OutputFile(std::filesystem::path path, int descriptor);
  ~OutputFile();

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  const std::filesystem::path& path() const {
    return path_;
  }
  int descriptor() const {
    return descriptor_;
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// The steps by which a checkpoint reaches the disk. Virtual for tests, which
/// record them, stop at one, or let one fail.
/// Errors:  c10::Error naming the path and the system's reason.
class Disk {
 public:
  virtual ~Disk() = default;

  virtual void make_directory(const std::filesystem::path& path);
  /// A new file.
  virtual OutputFile create(const std::filesystem::path& path);
  /// Appends.
  virtual void write(OutputFile& file, const void* data, size_t size);
  /// Returns when the file's content is on the disk.
  virtual void sync(OutputFile& file);
  /// Returns when the names in the directory are on the disk.
  virtual void sync_directory(const std::filesystem::path& path);
  virtual void rename(
      const std::filesystem::path& from,
      const std::filesystem::path& to);
  /// With all that is in it.
  virtual void remove(const std::filesystem::path& path);
};

}  // namespace tessera
