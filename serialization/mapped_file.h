// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// The bytes of a file in memory, read from the disk where they are used. They
/// may be written to: pages are copied then, and the file stays as it is.
/// Errors:  c10::Error beginning with `where` for what can't be mapped;
///          c10::ValueError for what is not a file, and for a path that is too long
///          or has a zero byte.
class MappedFile {
 public:
  MappedFile(const std::string& path, const std::string& where);
  ~MappedFile();

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Begins on a page.
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
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tessera
