// SPDX-License-Identifier: Apache-2.0
#include "serialization/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/common/check.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;

void check(bool is_done, const char* action, const fs::path& path, int error) {
  TESSERA_CHECK(
      is_done,
      "[save_checkpoint] can't {} '{}': {}. Checkpoints that were complete before stay as they are.",
      action,
      path.string(),
      std::strerror(error));
}

}  // namespace

OutputFile::OutputFile(fs::path path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void Disk::make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  check(!error, "make the directory", path, error.value());
}

OutputFile Disk::create(const fs::path& path) {
  constexpr mode_t kReadable = 0666;
  const int descriptor =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kReadable);
  check(descriptor >= 0, "create", path, errno);
  return {path, descriptor};
}

void Disk::write(OutputFile& file, const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  size_t left = size;
  while (left > 0) {
    const ssize_t written = ::write(file.descriptor(), next, left);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    check(written >= 0, "write to", file.path(), errno);
    next += written;
    left -= static_cast<size_t>(written);
  }
#ifdef __linux__
  // Begin to write now, so that sync() at the end has little left to wait for.
  ::sync_file_range(file.descriptor(), 0, 0, SYNC_FILE_RANGE_WRITE);
#endif
}

void Disk::sync(OutputFile& file) {
  check(::fsync(file.descriptor()) == 0, "write to", file.path(), errno);
}

void Disk::sync_directory(const fs::path& path) {
  const int descriptor =
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check(descriptor >= 0, "open", path, errno);
  const OutputFile directory(path, descriptor);
  // Some file systems can't, and need not.
  check(::fsync(descriptor) == 0 || errno == EINVAL, "write to", path, errno);
}

void Disk::rename(const fs::path& from, const fs::path& to) {
  check(::rename(from.c_str(), to.c_str()) == 0, "rename", from, errno);
}

void Disk::remove(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  check(!error, "remove", path, error.value());
}

}  // namespace tessera
