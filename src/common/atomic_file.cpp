// SPDX-License-Identifier: Apache-2.0
#include "src/common/atomic_file.h"

#include "src/common/check.h"
#include "src/common/checksum.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

namespace tessera {

namespace {

FileDescriptor create_file(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  return FileDescriptor(::open(path.c_str(), kFlags, 0666));
}

// Only the holder of the lock may rename or delete the file at a temporary path. The
// lock ends with its process, so a file without a lock has no writer any more.
bool take_lock(const FileDescriptor& file) {
  return ::flock(file.number(), LOCK_EX | LOCK_NB) == 0;
}

// Deletes the temporary file of a process that died. The file is not used again, because
// it may have another owner, other permissions or another hard link.
void remove_abandoned(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its reader.
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  // NFS can only lock a file that is open for writing, but a file may be read-only.
  for (const int access : {O_WRONLY, O_RDONLY}) {
    const FileDescriptor file(::open(path.c_str(), access | kFlags));
    if (file.is_open() && take_lock(file) && file.is_at(path.c_str())) {
      ::unlink(path.c_str());
      return;
    }
  }
}

// Creates and locks the file. Returns a descriptor that is not open if the path is taken,
// or if the file can't be locked.
FileDescriptor create_locked(const std::string& path) {
  remove_abandoned(path);
  FileDescriptor file = create_file(path);
  if (!file.is_open()) {
    return {};
  }
  if (!take_lock(file)) {
    // If another process has the lock, it is about to delete the file.
    if (errno != EWOULDBLOCK) {
      ::unlink(path.c_str());
    }
    return {};
  }
  // Another process may have deleted the file before the lock was taken.
  if (!file.is_at(path.c_str())) {
    return {};
  }
  return file;
}

// Returns when the file's name is on the disk.
void sync_folder_of(const std::string& path, const std::string& where) {
  const auto parent = std::filesystem::path(path).parent_path();
  const FileDescriptor folder =
      open_folder(parent.empty() ? "." : parent.c_str());
  // A folder that may not be read can't be opened, and so not be synced.
  if (folder.is_open() && !folder.sync_folder()) {
    fail_to_write(where, path, "the file can't be synced in its folder");
  }
}

// Returns the path of a temporary file without its suffix. If the suffix would make the
// name too long for the file system, a checksum takes the place of the file's name.
std::string stem_of(const std::string& path) {
  constexpr size_t kLongestSuffix = sizeof(".tmp-01234567") - 1;
  const std::filesystem::path file(path);
  const std::filesystem::path folder = file.parent_path();
  const std::string name = file.filename().string();
  // -1 if the folder does not exist, or has no limit.
  const int64_t limit =
      ::pathconf(folder.empty() ? "." : folder.c_str(), _PC_NAME_MAX);
  const bool is_too_long =
      limit >= 0 && name.size() + kLongestSuffix > static_cast<size_t>(limit);
  return is_too_long ? (folder / checksum_of(name)).string() : path;
}

}  // namespace

void fail_to_write(
    const std::string& where,
    const std::string& path,
    const char* problem) {
  const int number = errno;
  TESSERA_CHECK(
      false,
      "{} {}: {}: {}. {}",
      where,
      path,
      problem,
      std::strerror(number),
      advice_to_write(number));
}

AtomicFile::AtomicFile(const std::string& path, std::string where)
    : where_(std::move(where)), path_(path) {
  TESSERA_CHECK_VALUE(
      !path.empty(),
      "{} expected the path of a file, but got ''. Pass a path.",
      where_);
  check_path(path, where_);
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error == std::errc::filename_too_long) {
    errno = ENAMETOOLONG;
    fail_to_write(where_, path_, "the file can't be created");
  }
  const bool exists = std::filesystem::exists(status);
  TESSERA_CHECK_VALUE(
      exists ? std::filesystem::is_regular_file(status)
             : !std::filesystem::is_symlink(path, error),
      "{} {}: expected the path of a file, but this is {}. Choose another path.",
      where_,
      path_,
      std::filesystem::is_directory(status) ? "a folder"
          : exists                          ? "a device, a pipe or a socket"
                   : "a link to a path that does not exist");
  if (exists) {
    path_ = std::filesystem::canonical(path, error).string();
    path_ = error ? path : path_;
  }
  const std::string stem = stem_of(path_);
  written_path_ = stem + ".tmp-tessera";
  file_ = create_locked(written_path_);
  std::random_device random;
  while (!file_.is_open()) {
    written_path_ = fmt::format("{}.tmp-{:08x}", stem, random());
    file_ = create_file(written_path_);
    if (!file_.is_open() && errno != EEXIST) {
      fail_to_write(where_, path_, "the file can't be created");
    }
  }
  if (exists) {  // If fchmod() fails, the file keeps a new file's permissions.
    (void)::fchmod(file_.number(), static_cast<mode_t>(status.permissions()));
  }
}

AtomicFile::~AtomicFile() {
  // Delete the file before it is closed. Closing ends the lock, and then another process
  // may create a new file of this name.
  if (!is_committed_) {
    ::unlink(written_path_.c_str());
  }
}

void AtomicFile::write(const void* data, size_t size) {
  if (!file_.write(data, size)) {
    fail_to_write(where_, path_, "the file can't be written");
  }
}

void AtomicFile::commit() {
  if (!file_.sync()) {
    fail_to_write(where_, path_, "the file can't be synced");
  }
  // Some file systems report a failed write only when a descriptor is closed. Closing a
  // copy shows such an error before the rename, and keeps the lock.
  FileDescriptor copy(::fcntl(file_.number(), F_DUPFD_CLOEXEC, 0));
  if (!copy.is_open() || !copy.close()) {
    fail_to_write(where_, path_, "the file can't be closed");
  }
  if (::rename(written_path_.c_str(), path_.c_str()) != 0) {
    fail_to_write(where_, path_, "the file can't be renamed to its final path");
  }
  is_committed_ = true;
  file_ = FileDescriptor();
  sync_folder_of(path_, where_);
}

}  // namespace tessera
