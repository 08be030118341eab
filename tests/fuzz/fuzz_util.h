// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cmake/libtorch_headers.h"
#include "tests/temporary_folder.h"

#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <iostream>

namespace tessera::test {

/// Ends the fuzzer with `problem` unless the property holds.
inline void require(bool holds, const std::string& problem) {
  if (!holds) {
    std::cerr << "fuzzer: " << problem << "\n";
    std::abort();
  }
}

/// Returns false after a c10::Error. Any other exception ends the program.
inline bool succeeds(const std::function<void()>& read) {
  try {
    read();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

/// A folder for files, in memory if the system has one there.
inline const std::string& scratch_folder() {
  static const std::string path =
      ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  return path;
}

/// A folder there that is removed with this object.
struct ScratchFolder : TemporaryFolder {
  ScratchFolder() : TemporaryFolder(scratch_folder()) {}
};

/// A file with these bytes, in memory if the system has a folder there. Only one can
/// exist at a time.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& bytes) {
    ::unlink(path().c_str());
    std::ofstream(path(), std::ios::binary) << bytes;
  }
  ~ScratchFile() {
    ::unlink(path().c_str());
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  static const std::string& path() {
    static const std::string path =
        scratch_folder() + "/tessera_fuzz." + std::to_string(::getpid());
    return path;
  }
};

}  // namespace tessera::test
