// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/file_bytes.h>

#include <arrow/io/compressed.h>
#include <arrow/io/file.h>
#include <arrow/util/compression.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "packages/data/src/arrow/input_file.h"
#include "packages/data/src/reader_checks.h"

namespace tessera::data {

/// The bytes of a text file, plain, gzip or zstd.
class TextBytes {
 public:
  /// Errors:  c10::ValueError for a file that can't be opened or that is not text.
  TextBytes(std::string reader, std::string path)
      : where_(where_of_file(reader, path)) {
    plain_ = std::make_unique<FileBytes>(path, std::move(reader));
    const std::string begin = begin_of_file(path);
    const bool is_zstd = begins_zstd(begin);
    if (is_zstd) {
      plain_ = nullptr;
      auto input = arrow::io::ReadableFile::Open(path);
      check_status(input.status(), where_);
      auto codec = arrow::util::Codec::Create(arrow::Compression::ZSTD);
      check_status(codec.status(), where_);
      // Only Make() uses the codec, so the stream may live longer.
      auto stream =
          arrow::io::CompressedInputStream::Make(codec->get(), *input);
      check_status(stream.status(), where_);
      zstd_ = *stream;
    }
    read_begin();
    check_text_begin(begin_, is_zstd || begins_gzip(begin), where_);
  }

  /// Reads up to `size` bytes and returns their number, which is 0 at the end.
  /// Errors:  c10::ValueError for a file that can't be read, is damaged or cut off.
  size_t read(char* to, size_t size) {
    if (!begin_.empty()) {
      const size_t count = std::min(size, begin_.size());
      begin_.copy(to, count);
      begin_.erase(0, count);
      return count;
    }
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
    return read_file(to, size);
  }

 private:
  void read_begin() {
    begin_.resize(kTextBeginBytes);
    size_t end = 0;
    try {
      size_t count = 0;
      do {
        count = read_file(begin_.data() + end, begin_.size() - end);
        end += count;
      } while (count > 0 && end < begin_.size());
    } catch (const c10::Error&) {
      error_ = std::current_exception();
    }
    begin_.resize(end);
  }

  size_t read_file(char* to, size_t size) {
    if (plain_ != nullptr) {
      return plain_->read(to, size);
    }
    const auto count = zstd_->Read(static_cast<int64_t>(size), to);
    check_status(count.status(), where_);
    return static_cast<size_t>(*count);
  }

  std::string where_;
  std::string begin_;  // the first bytes, until they are read
  std::exception_ptr error_;  // to raise after begin_ was read
  std::unique_ptr<FileBytes> plain_;  // for plain text and gzip
  std::shared_ptr<arrow::io::InputStream> zstd_;
};

}  // namespace tessera::data
