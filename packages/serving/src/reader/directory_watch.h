// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/file_descriptor.h"

#include <atomic>
#include <filesystem>

namespace tessera::serving {

/// Waits for a rename in a directory, by inotify if the system has it. The directory may
/// vanish and come back.
class DirectoryWatch {
 public:
  /// Errors:  Error if the process has too many open files.
  explicit DirectoryWatch(std::filesystem::path directory);

  /// Returns after a change, after stop(), or after `seconds`.
  void wait(double seconds);
  /// Ends wait(), now and from now on. Another thread may call it.
  void stop();
  bool is_stopped() const {
    return is_stopped_;
  }

 private:
  void watch_again();

  std::filesystem::path directory_;
  FileDescriptor inotify_;
  FileDescriptor stop_;  // wakes wait()
  std::atomic<bool> is_stopped_ = false;
  int watch_ = -1;
};

}  // namespace tessera::serving
