// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace tessera::data {

/// Whole lines of one file, each with a newline at its end. There may be no lines, for
/// example because all of them are before start_line.
struct LineBlock {
  std::vector<char> text = {};  // the lines are in [begin, end)
  size_t begin = 0;
  size_t end = 0;
  int64_t lines = 0;
  size_t file = 0;
  int64_t first_line = 0;  // counted over all files
  int64_t first_line_of_file = 0;
};

struct LineSourceOptions {
  std::vector<std::string> files = {};
  size_t block_bytes = 0;
  size_t max_line_bytes = 0;
  /// The number of readable bytes after a block's end.
  size_t padding = 0;
  int64_t start_line = 0;
};

class FileBytes;

/// Checks that a path is a file that is not empty.
/// Errors:  c10::ValueError for a path that is missing, a folder or empty.
void check_readable(const std::string& path);

/// Reads the lines of several files, plain text or gzip. If a line is longer than
/// max_line_bytes, only its first max_line_bytes + 1 bytes are kept.
class LineSource {
 public:
  explicit LineSource(LineSourceOptions options);
  ~LineSource();

  /// Reads the next block_bytes of a file, which may contain no whole line. Returns false
  /// after the last block. All whole lines before an error are returned before it is
  /// raised.
  /// Errors:  c10::ValueError for a file that can't be read, is empty, damaged or
  ///          cut off, and when there are fewer lines than start_line.
  bool next(LineBlock& block);

 private:
  void fill(LineBlock& block);
  void drop_rest_of_line(LineBlock& block);
  void cut_last_line(LineBlock& block, bool is_at_end);
  void skip_to_start(LineBlock& block);
  void open_file();
  void close_file();

  LineSourceOptions options_;
  size_t file_ = 0;
  std::unique_ptr<FileBytes> bytes_;
  std::string carry_;  // the beginning of a line
  bool is_dropping_ = false;  // whether the rest of a too long line follows
  int64_t line_ = 0;
  int64_t line_of_file_ = 0;
  std::exception_ptr error_;
};

}  // namespace tessera::data
