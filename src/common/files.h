// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace tessera {

/// The number of an open file, or none. Closes the file when it is destroyed.
///
/// Its functions report a failure as the system does: they return false and leave the
/// reason in errno. The caller raises an error that fits its task.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  /// Takes the result of open(). A negative number means that no file is open.
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor();

  FileDescriptor(FileDescriptor&& other) noexcept
      : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  bool is_open() const {
    return number_ >= 0;
  }
  int number() const {
    return number_;
  }

  /// Whether `path` names this file, and the file is regular. Another process may have
  /// renamed or deleted the file since it was opened.
  bool is_at(const char* path) const;
  /// Writes all bytes at the current position.
  [[nodiscard]] bool write(const void* data, size_t size) const;
  /// Returns when the content is on the disk.
  [[nodiscard]] bool sync() const;
  /// Like sync(), for a folder. Succeeds where the file system can't sync folders.
  [[nodiscard]] bool sync_folder() const;
  [[nodiscard]] bool close();

 private:
  int number_ = -1;
};

/// Opens a folder, so that it can be synced.
FileDescriptor open_folder(const char* path);

/// Checks a path. The system reads a path up to its first zero byte, so a path with a
/// zero byte would open another file. Call this function before any use of a path.
/// Errors:  c10::ValueError that begins with `where`, for a path with a zero byte or
///          with more than 4096 bytes.
void check_path(const std::string& path, const std::string& where);

/// Returns a sentence for the end of a message. It says what a user can do when the
/// system refuses to read from a path. `number` is the value of errno.
const char* advice_to_read(int number);

/// Like advice_to_read(), but for a path that can't be written to.
const char* advice_to_write(int number);

}  // namespace tessera
