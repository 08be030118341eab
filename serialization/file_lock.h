// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/file_descriptor.h"

#include <string>
#include <utility>

namespace tessera {

/// While it exists, nobody else can lock the same path: an existing directory, or a
/// file, which is created where there is none. An existing file keeps its mode.
/// Errors:  c10::ValueError for a path that is too long or has a zero byte;
///          c10::Error beginning with `where`, naming the path and ending with
///          `advice`.
class FileLock {
 public:
  /// One holder at a time, also in one process.
  static FileLock of_holder(
      const std::string& path,
      const char* where,
      const char* advice);

  /// One process at a time: what an exception has left behind keeps the same
  /// process out of nothing. Closing any of its locks of this path ends all of
  /// them. No lock on file systems that have none.
  static FileLock of_process(
      const std::string& path,
      const char* where,
      const char* advice);

 private:
  explicit FileLock(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

}  // namespace tessera
