// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/file_bytes.h>

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace tessera::data {

// snippet: tests/docs/reference_sources_test.cpp LineSource
/// Reads the lines of several files, plain text or gzip, in blocks. A line that is longer
/// than max_line_bytes may be cut, but keeps at least its first max_line_bytes + 1 bytes.
///
///   LineSource source({.files = {"day_0.gz"}, .start_line = 1});
///   for (LineSource::Block block; source.next(block);) {
///     const std::string_view text(
///         block.text.data() + block.begin, block.end - block.begin);
///     lines += std::count(text.begin(), text.end(), '\n');
///   }
///
/// Not thread safe.
class LineSource {
 public:
  /// Whole lines of one file, each with a newline at its end. There may be no lines, for
  /// example because all of them are before start_line.
  struct Block {
    std::vector<char> text = {};  // the lines are in [begin, end)
    size_t begin = 0;
    size_t end = 0;
    int64_t lines = 0;
    size_t file = 0;
    int64_t first_line = 0;  // counted over all files
    int64_t first_line_of_file = 0;
  };

  /// The files that a LineSource reads, and how it reads them.
  struct Options {
    /// Text or gzip files, recognised by their first bytes. They are read one after the
    /// other.
    std::vector<std::string> files = {};
    /// The number of bytes that each next() reads, in [1, 2^30].
    size_t block_bytes = size_t{1} << 18;
    /// Lines up to this length are returned completely, and longer ones may be cut. In
    /// [1, 2^30].
    size_t max_line_bytes = 4096;
    /// The number of readable bytes after a block's end, at most 2^20.
    size_t padding = 0;
    /// The number of lines to skip at the beginning, counted over all files. >= 0.
    int64_t start_line = 0;
    /// Messages begin with this name.
    std::string reader = "LineSource";

    bool operator==(const Options&) const = default;
  };

  /// next() raises this error if the files have fewer lines than start_line.
  class StartAfterEnd : public c10::ValueError {
   public:
    using c10::ValueError::ValueError;
  };

  /// Errors:  c10::ValueError if there are no files, and for options out of range.
  explicit LineSource(Options options);
  ~LineSource();

  /// Reads the next block_bytes of a file, which may contain no whole line. Returns false
  /// after the last block. All whole lines before an error are returned before it is
  /// raised.
  /// Errors:  c10::ValueError for a file that can't be read, is not text, is empty,
  ///          damaged or cut off; StartAfterEnd if there are fewer lines than start_line.
  bool next(Block& block);

 private:
  void fill(Block& block);
  void drop_rest_of_line(Block& block);
  void cut_last_line(Block& block, bool is_at_end);
  void skip_to_start(Block& block);
  void open_file();
  void close_file();

  Options options_;
  size_t file_ = 0;
  std::unique_ptr<FileBytes> bytes_;
  std::string carry_;  // the beginning of a line
  bool is_at_begin_ = false;  // of the file
  bool is_dropping_ = false;  // whether the rest of a too long line follows
  int64_t line_ = 0;
  int64_t line_of_file_ = 0;
  std::exception_ptr error_;
};

}  // namespace tessera::data
