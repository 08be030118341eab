// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/files.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

/// Raises a c10::Error unless `has_succeeded`, which says whether a call that reads the file
/// has succeeded. The error begins with `where` and has the reason in errno.
void check_read(
    bool has_succeeded,
    const std::string& path,
    const std::string& where);

struct OpenFile {
  FileDescriptor descriptor;
  size_t size = 0;
};

/// Opens a regular file to read it.
/// Errors:  as MappedFile.
OpenFile open_file(const std::string& path, const std::string& where);

/// The bytes of a file, mapped into memory. A page is read from the disk when it is used.
/// They may be written to: then a page is copied, and the file does not change. If
/// another process shortens the file, reading a lost page ends this process (SIGBUS). A
/// rename over the file does no harm.
/// Errors:  c10::Error beginning with `where` for a file that can't be mapped;
///          c10::ValueError for a path that is not a regular file, is too long or has a
///          zero byte.
class MappedFile {
 public:
  MappedFile(const std::string& path, const std::string& where);
  /// The bytes of a file that are in memory already, where `owner` keeps them. A write to
  /// them changes them for all readers.
  MappedFile(std::string_view bytes, std::shared_ptr<const void> owner);
  ~MappedFile();

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// A file starts at the beginning of a page. nullptr if it is empty.
  char* data() const {
    return data_;
  }
  size_t size() const {
    return size_;
  }
  std::string_view text() const {
    return {data_, size_};
  }

 private:
  std::shared_ptr<const void> owner_;
  char* data_ = nullptr;
  size_t size_ = 0;
  bool is_mapped_ = false;  // by this object
};

}  // namespace tessera
