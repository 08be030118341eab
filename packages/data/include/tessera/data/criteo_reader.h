// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/malformed_lines.h>
#include <tessera/data/reader_iterator.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::data {

/// The numbers of fields after the label of an example, in the Criteo click logs.
inline constexpr int64_t kCriteoIntegers = 13;
inline constexpr int64_t kCriteoCategories = 26;

/// Examples of the Criteo click logs. The reader stores them column by column,
/// so that each column is contiguous.
struct CriteoBatch {
  at::Tensor labels = {};  // [batch] float32, 0 or 1
  at::Tensor integers = {};  // [batch, 13] int64, kMissing where empty
  /// [batch, 26] int64: the hexadecimal number, in [0, 2^32), kMissing where empty.
  at::Tensor categories = {};
};

/// The columns "label", "I1" to "I13" and "C1" to "C26". They share the memory of a batch
/// that a reader has returned.
/// Errors:  c10::ValueError for other shapes or types.
Columns to_columns(const CriteoBatch& batch);

/// The options of a CriteoReader.
struct CriteoReaderOptions {
  // snippet: tests/docs/reference_data_test.cpp CriteoShard
  /// Shares files between `count` readers. A reader gets line n if n % count == index.
  /// Lines are counted from 0 over all files.
  ///
  ///   // The second of two processes that read the same files.
  ///   CriteoReader reader(
  ///       {.files = {"day_0.gz"},
  ///        .batch_size = 2,
  ///        .shard = {.index = 1, .count = 2}});
  struct Shard {
    int64_t index = 0;
    int64_t count = 1;

    bool operator==(const Shard&) const = default;
  };

  /// Text or gzip files, recognised by their first bytes. They are read one after the
  /// other.
  std::vector<std::string> files = {};
  int64_t batch_size = 1024;
  /// If true, the reader drops the last examples if they do not fill a batch.
  bool drop_last = false;
  MalformedLines malformed_lines = MalformedLines::kError;
  /// The number of malformed lines that kSkip allows. One more is an error. If unset,
  /// there is no limit.
  std::optional<int64_t> max_malformed_lines = {};
  /// The number of lines to skip at the beginning. To continue where an earlier reader
  /// was, set it to that reader's CriteoReader::next_line().
  int64_t start_line = 0;
  Shard shard = {};
  /// The number of threads that parse while one more reads and inflates. 0 means one per
  /// core, but at most four.
  int64_t threads = 0;
  /// The maximum number of blocks of lines in memory. At most queue_blocks - 2 threads
  /// run, including the one that reads. 0 means 2 * threads + 2, and 1 and 2 mean 3.
  int64_t queue_blocks = 0;
  /// The size of the text in a block, in bytes. A block may be larger by one line.
  int64_t block_bytes = int64_t{1} << 18;
  /// Longer lines count as malformed.
  int64_t max_line_bytes = 4096;

  bool operator==(const CriteoReaderOptions&) const = default;
};

/// Errors:  c10::ValueError for options out of range, and for files that are missing or
///          empty.
void validate(const CriteoReaderOptions& options);

/// Counts what a CriteoReader has read so far.
using CriteoReport = ReadReport;

// snippet: tests/docs/reference_data_test.cpp CriteoReader
/// Reads batches from the Criteo click logs, with its own threads:
///
///   for (CriteoBatch& batch : CriteoReader({.files = {"day_0.gz"}})) {
///     train(to_columns(batch));
///   }
///
/// Each line is one example: a label, 13 integers and 26 categories of up to 8
/// hexadecimal digits, separated by tabs. Integers and categories may be empty. Lines
/// end with LF or CR LF. The number of threads and the sizes of blocks and queue do not
/// change the batches.
///
/// Memory:  at most queue_blocks blocks are in memory, however slow the caller is.
///          Each takes block_bytes + max_line_bytes for its text and 1.2 times as much
///          for its examples. The factor is 8 instead of 1.2 if all fields are empty,
///          and larger if there are only skipped lines of a few bytes.
/// Errors:  c10::ValueError for options out of range and for files that are missing,
///          empty, damaged or cut off; for malformed lines see `malformed_lines`.
///          next() first returns all complete batches from the lines before the
///          error. With kSkip and without drop_last, it also returns the incomplete
///          batch before a damaged part of a file. After the error, next() raises the
///          same error again.
///          c10::Error from each member of a reader that was moved from.
/// Not thread safe.
class CriteoReader {
 public:
  explicit CriteoReader(CriteoReaderOptions options);
  CriteoReader(CriteoReader&&) noexcept;
  CriteoReader& operator=(CriteoReader&&) noexcept;
  /// A reader may be destroyed before all batches are read. The destructor waits until
  /// the threads have finished their current blocks. A block of a pipe is finished when
  /// it is full, or when the writer closes the pipe.
  ~CriteoReader();

  /// The next batch, or nullopt after the last one.
  std::optional<CriteoBatch> next();

  /// The line at which another reader can continue, counted from 0 over all files. It
  /// comes after the last returned example, and may come after further lines that have
  /// no example for this reader. Examples that were read but not returned, because of an
  /// error or drop_last, come after it.
  int64_t next_line() const;
  const CriteoReport& report() const&;
  const CriteoReport& report() const&& = delete;

  using Iterator = detail::ReaderIterator<CriteoReader, CriteoBatch>;

  /// Iterates over the remaining batches.
  Iterator begin() & {
    return Iterator(*this);
  }
  std::default_sentinel_t end() const {
    return {};
  }

 private:
  class Batches;
  // Errors:  c10::Error for a reader that was moved from.
  Batches& batches() const;

  std::unique_ptr<Batches> batches_;
};

}  // namespace tessera::data
