// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/csv_source.h>

#include "src/data/arrow/input_file.h"
#include "src/data/arrow/text_bytes.h"

#include <arrow/csv/options.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace arrow {
class Chunker;
}

namespace tessera::data {

/// The name in messages.
inline constexpr const char* kCsvReader = "make_csv_source";

/// A file and the positions of the requested columns.
struct CsvFile {
  std::string path = {};
  FileStamp stamp = {};
  std::vector<std::string> names = {};  // of all columns
  std::vector<int> positions = {};  // of the requested columns
};

/// Whole rows of a file.
struct CsvBlock {
  std::string text = {};
  size_t begin = 0;  // the rows are in [begin, text.size())
};

/// Arrow's options for rows.
arrow::csv::ParseOptions parse_options_of(const CsvOptions& options);

/// Reads a file in blocks of whole rows.
class CsvBlocks {
 public:
  /// Errors:  c10::ValueError for a file that can't be opened, has changed or is no text.
  CsvBlocks(
      const CsvOptions& options,
      const std::string& path,
      const FileStamp& stamp);
  ~CsvBlocks();

  /// Reads the next block. Returns false after the last one. A row that has no end is a
  /// block of its own.
  /// Errors:  c10::ValueError for a file that can't be read, is damaged or cut off, or
  ///          has changed, and for a row that is too long. All whole rows before an error
  ///          are returned before it is raised.
  bool next(CsvBlock& block);

  /// The names in the first row, which the first block does not have then.
  /// Errors:  c10::ValueError if the file has no row.
  std::vector<std::string> read_header();

  /// The number of lines of the rows that read_header() took.
  int64_t header_lines() const {
    return header_lines_;
  }

 private:
  bool read_some(std::string& text);
  size_t end_of_rows(const std::string& text) const;

  size_t block_bytes_;
  size_t max_row_bytes_;
  char quote_;
  std::string path_;
  FileStamp stamp_;
  arrow::csv::ParseOptions parse_options_;
  TextBytes bytes_;
  std::unique_ptr<arrow::Chunker> chunker_;
  std::string carry_;  // the beginning of a row
  CsvBlock first_;  // the block after the header
  bool has_first_ = false;
  bool is_at_begin_ = true;
  bool is_ended_ = false;
  int64_t header_lines_ = 0;
  int64_t line_ = 1;  // of the beginning of carry_
  std::exception_ptr error_;
};

}  // namespace tessera::data
