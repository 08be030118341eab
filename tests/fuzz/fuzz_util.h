// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <string>
#include <system_error>

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

/// A folder that is removed with this object.
class ScratchFolder {
 public:
  ScratchFolder() = default;
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const {
    return path_;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }

 private:
  std::string path_ =
      scratch_folder() + "/tessera_fuzz_folder." + std::to_string(::getpid());
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
