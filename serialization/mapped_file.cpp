// SPDX-License-Identifier: Apache-2.0
#include "serialization/mapped_file.h"

#include "src/common/check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tessera {

void check_read(
    bool has_succeeded,
    const std::string& path,
    const std::string& where) {
  const int number = errno;
  TESSERA_CHECK(
      has_succeeded,
      "{} {}: the file can't be read: {}. {}",
      where,
      path,
      std::strerror(number),
      advice_to_read(number));
}

OpenFile open_file(const std::string& path, const std::string& where) {
  check_path(path, where);
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  check_read(file.is_open(), path, where);
  struct stat status = {};
  check_read(::fstat(file.number(), &status) == 0, path, where);
  TESSERA_CHECK_VALUE(
      S_ISREG(status.st_mode),
      "{} {}: expected a file, but this is a folder, a pipe or a device. Choose another path.",
      where,
      path);
  return {std::move(file), static_cast<size_t>(status.st_size)};
}

MappedFile::MappedFile(const std::string& path, const std::string& where) {
  const OpenFile file = open_file(path, where);
  size_ = file.size;
  if (size_ == 0) {
    return;  // mmap() refuses an empty mapping.
  }
  // Without MAP_NORESERVE, the kernel refuses a file larger than memory, because all of
  // it might be written to.
  void* memory = ::mmap(
      nullptr,
      size_,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_NORESERVE,
      file.descriptor.number(),
      0);
  check_read(memory != MAP_FAILED, path, where);
  data_ = static_cast<char*>(memory);
  is_mapped_ = true;
}

MappedFile::MappedFile(
    std::string_view bytes,
    std::shared_ptr<const void> owner)
    : owner_(std::move(owner)),
      data_(const_cast<char*>(bytes.data())),
      size_(bytes.size()) {}

MappedFile::~MappedFile() {
  if (is_mapped_) {
    ::munmap(data_, size_);
  }
}

}  // namespace tessera
