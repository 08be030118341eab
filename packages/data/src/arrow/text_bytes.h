// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/file_bytes.h>

#include <arrow/type_fwd.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <string>

namespace arrow::io {
class InputStream;
}

namespace tessera::data {

/// The bytes of a text file, plain, gzip or zstd.
class TextBytes {
 public:
  /// Errors:  c10::ValueError for a file that can't be opened or that is not text.
  TextBytes(std::string reader, std::string path);

  /// Reads up to `size` bytes and returns their number, which is 0 at the end.
  /// Errors:  c10::ValueError for a file that can't be read, is damaged or cut off.
  size_t read(char* to, size_t size);

 private:
  void read_begin();
  size_t read_file(char* to, size_t size);

  std::string where_;
  std::string begin_;  // the first bytes, until they are read
  std::exception_ptr error_;  // to raise after begin_ was read
  std::unique_ptr<FileBytes> plain_;  // and gzip
  std::shared_ptr<arrow::io::InputStream> zstd_;
};

}  // namespace tessera::data
