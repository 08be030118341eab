// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/csv_source.h>

#include "packages/data/src/arrow/csv_rows.h"
#include "packages/data/src/arrow/input_file.h"
#include "packages/data/src/arrow/text_bytes.h"

#include <arrow/csv/options.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  RowProblem describe(RowScan::State state, std::string_view row) const;
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
    RowScan::State state = RowScan::State::kPartial;
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
