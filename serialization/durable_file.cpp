// SPDX-License-Identifier: Apache-2.0
#include "serialization/durable_file.h"

#include "src/common/check.h"
#include "src/common/check_path.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

namespace tessera {

namespace {

// Linux writes at most 2 GiB - 4 KiB at a time.
constexpr size_t kMaxWrite = size_t{1} << 30;

int open_new(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

// Returns when the file's name is on the disk.
void sync_folder_of(const std::string& path, const std::string& where) {
  // Not every folder may be read, and not every file system can sync one.
  const auto folder = std::filesystem::path(path).parent_path();
  const int descriptor = ::open(
      folder.empty() ? "." : folder.c_str(),
      O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return;
  }
  const int number = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  TESSERA_CHECK(
      number == 0 || number == EINVAL,
      "{} {}: the file can't be synced in its folder: {}.",
      where,
      path,
      std::strerror(number));
}

}  // namespace

DurableFile::DurableFile(const std::string& path, std::string where)
    : where_(std::move(where)), path_(path) {
  TESSERA_CHECK_VALUE(
      !path.empty(),
      "{} expected the path of a file, but got ''. Name one.",
      where_);
  check_path(path, where_);
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  const bool exists = std::filesystem::exists(status);
  TESSERA_CHECK_VALUE(
      exists ? std::filesystem::is_regular_file(status)
             : !std::filesystem::is_symlink(path, error),
      "{} {}: expected the path of a file, but this is {}. Name another.",
      where_,
      path_,
      std::filesystem::is_directory(status) ? "a folder"
          : exists                          ? "a device, a pipe or a socket"
                                            : "a link to nothing");
  if (exists) {
    path_ = std::filesystem::canonical(path, error).string();
    path_ = error ? path : path_;
  }
  std::random_device random;
  do {
    written_path_ = fmt::format("{}.tmp-{:08x}", path_, random());
    descriptor_ = open_new(written_path_);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) {
    fail("created");
  }
  if (exists) {  // Where that is not allowed, new permissions serve.
    (void)::fchmod(descriptor_, static_cast<mode_t>(status.permissions()));
  }
}

DurableFile::~DurableFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!is_committed_) {
    ::unlink(written_path_.c_str());
  }
}

void DurableFile::fail(const char* action) const {
  const int number = errno;
  TESSERA_CHECK(
      false,
      "{} {}: the file can't be {}: {}.",
      where_,
      path_,
      action,
      std::strerror(number));
}

void DurableFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written =
        ::write(descriptor_, next, std::min(size, kMaxWrite));
    if (written < 0 && errno != EINTR) {
      fail("written");
    }
    if (written > 0) {
      next += written;
      size -= static_cast<size_t>(written);
    }
  }
}

void DurableFile::commit() {
  if (::fsync(descriptor_) != 0) {
    fail("synced");
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    fail("closed");
  }
  if (::rename(written_path_.c_str(), path_.c_str()) != 0) {
    fail("renamed to its place");
  }
  is_committed_ = true;
  sync_folder_of(path_, where_);
}

}  // namespace tessera
