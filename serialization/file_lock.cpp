// SPDX-License-Identifier: Apache-2.0
#include "serialization/file_lock.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace tessera {

namespace {

// `lock` returns 0, or -1 with errno.
OutputFile open_locked(
    const std::string& path,
    bool is_directory,
    int (*lock)(int descriptor),
    const char* where,
    const char* advice) {
  constexpr mode_t kAnybody = 0666;
  const int flags = is_directory ? O_RDONLY : O_RDWR | O_CREAT | O_NOFOLLOW;
  OutputFile file(path, ::open(path.c_str(), flags | O_CLOEXEC, kAnybody));
  TORCH_CHECK(
      file.descriptor() >= 0,
      where,
      " can't open '",
      path,
      "' to lock it: ",
      std::strerror(errno),
      is_directory ? ". It must be readable." : ". It must be writable.");
  struct stat folder = {};
  if (!is_directory &&
      ::stat(file.path().parent_path().c_str(), &folder) == 0) {
    // Who may write to the folder may go on when this one is done.
    (void)::fchmod(file.descriptor(), folder.st_mode & kAnybody);
  }
  const bool is_locked = lock(file.descriptor()) == 0;
  const bool is_held = errno == EAGAIN || errno == EACCES;
  TORCH_CHECK(
      is_locked,
      where,
      " can't lock '",
      path,
      "': ",
      is_held ? "it is in use" : std::strerror(errno),
      ". ",
      advice);
  return file;
}

}  // namespace

FileLock FileLock::of_holder(
    const std::string& path,
    const char* where,
    const char* advice) {
  std::error_code not_there;
  return FileLock(open_locked(
      path,
      std::filesystem::is_directory(path, not_there),
      [](int file) { return ::flock(file, LOCK_EX | LOCK_NB); },
      where,
      advice));
}

FileLock FileLock::of_process(
    const std::string& path,
    const char* where,
    const char* advice) {
  const auto lock = [](int file) {
    const bool is_free = ::lockf(file, F_TLOCK, 0) == 0 || errno == ENOLCK ||
        errno == ENOSYS || errno == EOPNOTSUPP;
    return is_free ? 0 : -1;
  };
  return FileLock(
      open_locked(path, /*is_directory=*/false, lock, where, advice));
}

}  // namespace tessera
