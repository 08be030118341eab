// SPDX-License-Identifier: Apache-2.0
#include "src/common/file_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tessera {

FileDescriptor::~FileDescriptor() {
  if (is_open()) {
    ::close(number_);
  }
}

bool FileDescriptor::is_at(const char* path) const {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(number_, &opened) == 0 && ::lstat(path, &named) == 0 &&
      S_ISREG(named.st_mode) && opened.st_dev == named.st_dev &&
      opened.st_ino == named.st_ino;
}

bool FileDescriptor::write(const void* data, size_t size) const {
  // Linux writes at most 2 GiB - 4 KiB at a time.
  constexpr size_t kMaxWrite = size_t{1} << 30;
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(number_, next, std::min(size, kMaxWrite));
    if (written < 0 && errno != EINTR) {
      return false;
    }
    if (written > 0) {
      next += written;
      size -= static_cast<size_t>(written);
    }
  }
  return true;
}

bool FileDescriptor::sync() const {
  return ::fsync(number_) == 0;
}

bool FileDescriptor::sync_folder() const {
  return sync() || errno == EINVAL;
}

bool FileDescriptor::close() {
  return ::close(std::exchange(number_, -1)) == 0;
}

FileDescriptor open_folder(const char* path) {
  return FileDescriptor(::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace tessera
