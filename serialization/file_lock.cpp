// SPDX-License-Identifier: Apache-2.0
#include "serialization/file_lock.h"

#include "src/common/check.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace tessera {

namespace {

// Opens the file, or creates it if there is none. Only a new file gets its mode here,
// because an existing file may belong to another user, or have other hard links.
int open_or_create(const std::string& path) {
  constexpr mode_t kAllUsers = 0666;
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC;
  for (;;) {
    const int created =
        ::open(path.c_str(), kFlags | O_CREAT | O_EXCL, kAllUsers);
    if (created >= 0) {
      const auto folder = std::filesystem::path(path).parent_path();
      struct stat status = {};
      if (::stat(folder.empty() ? "." : folder.c_str(), &status) == 0) {
        // Users who may write to the folder may also lock the file later.
        (void)::fchmod(created, status.st_mode & kAllUsers);
      }
      return created;
    }
    if (errno != EEXIST) {
      return -1;
    }
    const int found = ::open(path.c_str(), kFlags);
    if (found >= 0 || errno != ENOENT) {  // ENOENT: it was deleted meanwhile
      return found;
    }
  }
}

// Opens the path and locks it. `lock` returns 0, or -1 and sets errno.
FileDescriptor open_locked(
    const std::string& path,
    bool is_directory,
    int (*lock)(int descriptor),
    const std::string& where,
    const char* advice) {
  check_path(path, where);
  FileDescriptor file(
      is_directory ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC)
                   : open_or_create(path));
  const int open_error = errno;
  TESSERA_CHECK(
      file.is_open(),
      "{} can't open '{}' to lock it: {}. {}",
      where,
      path,
      std::strerror(open_error),
      is_directory ? advice_to_read(open_error) : advice_to_write(open_error));
  const bool is_locked = lock(file.number()) == 0;
  const int lock_error = errno;
  const bool is_in_use = lock_error == EAGAIN || lock_error == EACCES;
  TESSERA_CHECK(
      is_locked || !is_in_use,
      "{} can't lock '{}': it is in use. {}",
      where,
      path,
      advice);
  TESSERA_CHECK(
      is_locked,
      "{} can't lock '{}': {}. Choose a directory on a file system with locks.",
      where,
      path,
      std::strerror(lock_error));
  return file;
}

}  // namespace

FileLock FileLock::per_holder(
    const std::string& path,
    const std::string& where,
    const char* advice) {
  std::error_code ignored;
  return FileLock(open_locked(
      path,
      std::filesystem::is_directory(path, ignored),
      [](int file) { return ::flock(file, LOCK_EX | LOCK_NB); },
      where,
      advice));
}

FileLock FileLock::per_process(
    const std::string& path,
    const std::string& where,
    const char* advice) {
  const auto lock = [](int file) {
    const bool is_locked = ::lockf(file, F_TLOCK, 0) == 0 || errno == ENOLCK ||
        errno == ENOSYS || errno == EOPNOTSUPP;
    return is_locked ? 0 : -1;
  };
  return FileLock(
      open_locked(path, /*is_directory=*/false, lock, where, advice));
}

}  // namespace tessera
