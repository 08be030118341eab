// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/csv_source.h>
#include <tessera/data/file_bytes.h>

#include "packages/data/src/arrow/input_file.h"
#include "packages/data/src/reader_checks.h"

#include <arrow/csv/options.h>
#include <arrow/io/compressed.h>
#include <arrow/util/compression.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::data {

/// The name in messages.
inline constexpr const char* kCsvReader = "make_csv_source";

inline bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

/// The position of the first newline from `begin` on, or the size of the text.
inline size_t find_newline(std::string_view text, size_t begin) {
  const auto* found =
      std::find_if(text.data() + begin, text.data() + text.size(), is_newline);
  return static_cast<size_t>(found - text.data());
}

/// Where a scan of a row is.
enum class RowPhase {
  kFieldBegin,
  kInField,
  kInQuotes,
  /// After a quote that closes a quoted part, unless another quote follows.
  kAfterQuote,
  /// At text after a closing quote, which makes the row broken.
  kTextAfterQuote,
  /// At the newline after the row.
  kComplete
};

/// The result of scan_row().
struct RowScan {
  size_t end = 0;
  RowPhase phase = RowPhase::kFieldBegin;  // at `end`
};

/// Finds the end of the first row of the text, as Arrow does: a field that begins with
/// a quote may have newlines, and two quotes in it stand for one. If `quote` is '\0',
/// no character is a quote. If the row does not end in the text, a second call with a
/// longer text can continue, with `end` and `phase` of the first result as `begin` and
/// `phase`.
inline RowScan scan_row(
    std::string_view text,
    char delimiter,
    char quote,
    size_t begin = 0,
    RowPhase phase = RowPhase::kFieldBegin) {
  using enum RowPhase;
  for (size_t i = begin;; ++i) {
    if (phase == kInQuotes) {
      i = text.find(quote, i);
      if (i == std::string_view::npos) {
        return {.end = text.size(), .phase = phase};
      }
      phase = kAfterQuote;
      ++i;
    }
    if (i == text.size() || phase == kTextAfterQuote) {
      return {.end = i, .phase = phase};
    }
    const char c = text[i];
    if (is_newline(c)) {
      return {.end = i, .phase = kComplete};
    }
    const bool is_quote = quote != '\0' && c == quote;
    if (phase == kAfterQuote && !is_quote && c != delimiter) {
      return {.end = i, .phase = kTextAfterQuote};
    }
    // After the second quote of a pair, the quoted part continues.
    phase = c == delimiter              ? kFieldBegin
        : is_quote && phase != kInField ? kInQuotes
                                        : kInField;
  }
}

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

/// A file and the positions of the requested columns.
struct CsvFile {
  std::string path = {};
  FileStamp stamp = {};
  std::vector<std::string> names = {};  // of all columns
  std::vector<int> positions = {};  // of the requested columns
};

/// The problem of a row, and the advice to a user who does not want to correct the line.
struct RowProblem {
  std::string text = {};
  const char* advice = "";
  bool can_be_skipped = true;
};

/// A row that can't be split into fields.
struct BrokenRow {
  size_t begin = 0;  // in the text of its block
  RowProblem problem = {};
};

/// Whole rows of a file.
struct CsvBlock {
  std::string text = {};
  size_t begin = 0;  // the rows are in [begin, text.size())
  /// Broken rows, in the order of the file. The first line of a broken row is blank in
  /// the text, and its other lines follow as other rows. If the first line does not end
  /// in the text, its rest is left out of the next blocks. If malformed rows are
  /// errors, the block ends at the first broken row.
  std::vector<BrokenRow> broken = {};
  int64_t left_out = 0;  // bytes that were removed before the text
};

/// Arrow's options for rows.
arrow::csv::ParseOptions parse_options_of(const CsvOptions& options);

/// Reads a file in blocks of whole rows.
class CsvBlocks {
 public:
  /// Errors:  c10::ValueError for a file that can't be opened, has changed or is not text.
  CsvBlocks(
      const CsvOptions& options,
      const std::string& path,
      const FileStamp& stamp);

  /// Reads the next block. Returns false after the last one. The rows, whole and broken,
  /// do not depend on the size of the blocks. The time is proportional to the size of the
  /// file, whatever quotes it has.
  /// Errors:  c10::ValueError for a file that can't be read, is damaged or cut off, or
  ///          has changed. All whole rows before an error are returned before it is
  ///          raised.
  bool next(CsvBlock& block);

  /// Reads the column names in the first row. The next call of next() returns the rows
  /// after the first row.
  /// Errors:  c10::ValueError if the file has no row, or if the first one is broken.
  std::vector<std::string> read_header();

  /// The first call returns the number of lines that read_header() has read, which are
  /// those of the first row and the empty lines before it. Later calls return 0.
  int64_t take_header_lines() {
    return std::exchange(header_lines_, 0);
  }

 private:
  bool read_some(std::string& text);
  void leave_out_rest_of_line(CsvBlock& block);
  size_t end_of_rows(CsvBlock& block, bool is_at_end);
  RowScan scan(std::string_view text, size_t begin);
  RowProblem describe(RowPhase phase, std::string_view row) const;
  size_t blank_line(std::string& text, size_t begin);

  CsvOptions options_;
  size_t block_bytes_;
  size_t max_row_bytes_;
  std::string path_;
  FileStamp stamp_;
  TextBytes bytes_;
  std::string carry_;  // the beginning of a row
  // The scan that has come furthest without finding the end of its row. Positions are
  // in the current text.
  struct OpenScan {
    int64_t row = -1;
    int64_t end = -1;
    RowPhase phase = RowPhase::kFieldBegin;
  };
  OpenScan open_;
  bool is_blanking_ =
      false;  // whether the rest of a broken row's first line follows
  CsvBlock first_;  // the block after the header
  bool has_first_ = false;
  bool is_at_begin_ = true;
  bool is_ended_ = false;
  int64_t header_lines_ = 0;
  std::exception_ptr error_;
};

}  // namespace tessera::data
