// SPDX-License-Identifier: Apache-2.0
#include "src/common/files.h"

#include "src/common/check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <tessera/common/shorten.h>
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

void check_path(const std::string& path, const std::string& where) {
  constexpr size_t kMaxPath = 4096;  // the limit of Linux
  TESSERA_CHECK_VALUE(
      path.find('\0') == std::string::npos,
      "{} expected a path without a zero byte, but got '{}'. Choose another path.",
      where,
      shorten(path));
  TESSERA_CHECK_VALUE(
      path.size() <= kMaxPath,
      "{} expected a path of at most {} bytes, but got '{}'. Choose another path.",
      where,
      kMaxPath,
      shorten(path));
}

const char* advice_to_read(int number) {
  switch (number) {
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
      return "Correct the path.";
    case EACCES:
    case EPERM:
      return "Choose a path that you may read.";
    case EMFILE:
    case ENFILE:
      return "Close other files first.";
    default:
      return "Choose another path.";
  }
}

const char* advice_to_write(int number) {
  switch (number) {
    case ENOENT:
      return "Make its folder first, or choose another path.";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Choose a path that you may write to.";
    case ENOSPC:
    case EDQUOT:
      return "Free some space, or choose another path.";
    case EFBIG:
      return "Choose a path where files may be larger.";
    case ENAMETOOLONG:
      return "Choose a shorter path.";
    case EMFILE:
    case ENFILE:
      return "Close other files first.";
    default:
      return "Choose another path.";
  }
}

}  // namespace tessera
