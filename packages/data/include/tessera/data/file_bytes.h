// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace tessera::data {

// snippet: tests/docs/reference_sources_test.cpp FileBytes
/// The bytes of a file. If the first bytes are those of a gzip file, its members are
/// inflated one after the other.
///
///   FileBytes bytes("day_0.gz", "MyReader");
///   char part[4096];
///   while (const size_t count = bytes.read(part, sizeof(part))) {
///     text.append(part, count);
///   }
///
/// Not thread safe.
class FileBytes {
 public:
  /// Messages begin with the name of the `reader` that uses the file.
  /// Errors:  c10::ValueError if the file can't be opened.
  explicit FileBytes(std::string path, std::string reader = "FileBytes");
  FileBytes(FileBytes&&) noexcept;
  FileBytes& operator=(FileBytes&&) noexcept;
  ~FileBytes();

  /// Reads up to `size` bytes and returns their number, which is 0 at the end. All bytes
  /// before an error are returned before it is raised. The checksum of a gzip member is
  /// at its end, so that damaged bytes are returned before the error, too.
  /// Errors:  c10::ValueError for a file that can't be read, is damaged or cut off.
  size_t read(char* to, size_t size);

 private:
  class Stream;
  std::unique_ptr<Stream> stream_;
};

/// Checks that a path is a file that is not empty. Messages begin with the name of the
/// `reader`.
/// Errors:  c10::ValueError for a path that is missing, a folder or an empty file.
void check_readable(const std::string& path, const std::string& reader);

}  // namespace tessera::data
