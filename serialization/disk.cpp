// SPDX-License-Identifier: Apache-2.0
#include "serialization/disk.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "src/common/check.h"

namespace tessera {

namespace fs = std::filesystem;

void Disk::check(
    bool is_done,
    const char* action,
    const fs::path& path,
    std::error_code error) const {
  const int number = error ? error.value() : errno;
  TESSERA_CHECK(
      is_done,
      "{} can't {} '{}': {}. {} What was complete before stays as it is.",
      where_,
      action,
      path.string(),
      std::strerror(number),
      advice_to_write(number));
}

void Disk::make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  check(!error, "make the directory", path, error);
}

OutputFile Disk::create(const fs::path& path) {
  constexpr mode_t kReadable = 0666;
  FileDescriptor descriptor(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kReadable));
  check(descriptor.is_open(), "create", path);
  return {path, std::move(descriptor)};
}

void Disk::write(OutputFile& file, const void* data, size_t size) {
  check(file.descriptor.write(data, size), "write to", file.path);
#ifdef __linux__
  // Start to write to the disk now, so that sync() has little to wait for.
  ::sync_file_range(file.descriptor.number(), 0, 0, SYNC_FILE_RANGE_WRITE);
#endif
}

void Disk::sync(OutputFile& file) {
  check(file.descriptor.sync(), "write to", file.path);
}

void Disk::sync_directory(const fs::path& path) {
  const FileDescriptor folder = open_folder(path.c_str());
  check(folder.is_open(), "open", path);
  check(folder.sync_folder(), "write to", path);
}

void Disk::rename(const fs::path& from, const fs::path& to) {
  check(::rename(from.c_str(), to.c_str()) == 0, "rename", from);
}

void Disk::remove(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  check(!error, "remove", path, error);
}

}  // namespace tessera
