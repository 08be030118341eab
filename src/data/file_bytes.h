// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/file_descriptor.h"

#include <zlib.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::data {

/// The bytes of a file. If it is a gzip file of one or more members, they are inflated.
class FileBytes {
 public:
  /// Errors:  c10::ValueError if the file can't be opened.
  explicit FileBytes(std::string path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  /// Reads up to `size` bytes and returns their number, which is 0 at the end. All bytes
  /// before an error are returned before it is raised.
  /// Errors:  c10::ValueError for a file that can't be read, is damaged or cut off.
  size_t read(char* to, size_t size);

 private:
  size_t read_raw(char* to, size_t size);
  void fetch();
  bool begins_member() const;
  size_t inflate_some(char* to, size_t size);
  void begin_member();
  [[noreturn]] void fail(const std::string& problem, const char* advice) const;

  std::string path_;
  FileDescriptor file_;
  bool is_gzip_ = false;
  bool is_between_members_ = false;
  bool is_damaged_ = false;
  bool is_ended_ = false;
  std::vector<char> raw_;  // bytes [raw_begin_, raw_end_) are not used yet
  size_t raw_begin_ = 0;
  size_t raw_end_ = 0;
  z_stream stream_ = {};
};

}  // namespace tessera::data
