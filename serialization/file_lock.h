// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/files.h"

#include <string>
#include <utility>

namespace tessera {

/// A lock of a path. While it exists, nobody else can lock the same path. The path is an
/// existing directory, or a file, which is created if there is none. An existing file
/// keeps its mode.
/// Errors:  c10::ValueError for a path that is too long or has a zero byte;
///          c10::Error beginning with `where` and naming the path. If the path is in
///          use, the error ends with `advice`.
class FileLock {
 public:
  /// Allows one holder at a time, also within a process.
  static FileLock per_holder(
      const std::string& path,
      const std::string& where,
      const char* advice);

  /// Allows one process at a time. The path must not be a directory. The same process can
  /// lock the path again, for example when an exception has left a lock behind. But if the
  /// process closes one of its locks of this path, all of them end. On a file system
  /// without locks, this locks nothing.
  static FileLock per_process(
      const std::string& path,
      const std::string& where,
      const char* advice);

  /// Whether the path of a locked file still names this file. If not, somebody else can lock
  /// the path.
  bool is_at(const std::string& path) const {
    return file_.is_at(path.c_str());
  }

 private:
  explicit FileLock(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

}  // namespace tessera
