// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::data {

/// Fields of an example after its label, in the Criteo click logs.
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

/// "label", "I1" to "I13" and "C1" to "C26", without a copy of what a reader gave.
/// Errors:  c10::ValueError for other shapes or types.
Columns to_columns(const CriteoBatch& batch);

/// What becomes of a line that is not an example.
enum class MalformedLines { kError, kSkip };

/// One of `count` readers of the same files: it has the lines with
/// line % count == index, counted from 0 over all files.
struct CriteoShard {
  int64_t index = 0;
  int64_t count = 1;

  bool operator==(const CriteoShard&) const = default;
};

/// What a CriteoReader reads, and how.
struct CriteoReaderOptions {
  /// Text or gzip, told by their first bytes; read one after the other.
  std::vector<std::string> files = {};
  int64_t batch_size = 1024;
  /// Leave out the last examples when they do not fill a batch.
  bool drop_last = false;
  MalformedLines malformed_lines = MalformedLines::kError;
  /// With kSkip: more of them are an error, after all. Unset: no limit.
  std::optional<int64_t> most_malformed_lines = {};
  /// Lines to pass over unread, e.g. CriteoReader::next_line() of an earlier
  /// reader, to go on where it was.
  int64_t start_line = 0;
  CriteoShard shard = {};
  /// Threads that parse, beside one that reads and inflates. 0: one per core, at
  /// most four.
  int64_t threads = 0;
  /// Blocks of lines in memory at a time. 0: two per thread and two.
  int64_t queue_blocks = 0;
  /// Text of a block; a line more may be in it.
  int64_t block_bytes = int64_t{1} << 18;
  /// Longer lines are malformed.
  int64_t max_line_bytes = 4096;

  bool operator==(const CriteoReaderOptions&) const = default;
};

/// What a reader has given so far.
struct CriteoReport {
  int64_t examples = 0;
  /// Of text, inflated; to whole blocks.
  int64_t bytes = 0;
  int64_t malformed_lines = 0;
  /// File, line and what is wrong with it, of the first ten.
  std::vector<std::string> first_malformed_lines = {};
};

/// Batches of the Criteo click logs, read and parsed by threads of its own:
///
///   for (CriteoBatch& batch : CriteoReader({.files = {"day_0.gz"}})) {
///     const Columns columns = to_columns(batch);
///   }
///
/// A line is an example: label, 13 integers and 26 categories of up to 8
/// hexadecimal digits, apart by tabs; integers and categories may be empty. Lines
/// end with LF or CR LF. Options decide the batches, but the number of threads and
/// the sizes of blocks and queue do not change them.
///
/// Memory:  at most queue_blocks blocks are read ahead, however slow the caller.
///          Each takes block_bytes + max_line_bytes of text and 1.2 times as much
///          for the examples in it; 8 times, if all fields are empty, and
///          more where there are only skipped lines of a few bytes.
/// Errors:  c10::ValueError for options out of range and files that are missing,
///          empty, damaged or cut off; for malformed lines see `malformed_lines`.
///          next() raises it where it stands in the order of lines: complete
///          batches come first; with kSkip also what was read of the batch before a
///          damaged file's end. After that next() raises the same again.
///          c10::Error from each member of a reader that was moved from.
/// Not safe for use by several threads at a time.
class CriteoReader {
 public:
  explicit CriteoReader(CriteoReaderOptions options);
  CriteoReader(CriteoReader&&) noexcept;
  CriteoReader& operator=(CriteoReader&&) noexcept;
  /// Waits for the threads to finish their blocks; needs no reading to the end. A
  /// block of a pipe is finished when it is full, so that an idle pipe is waited
  /// for until its writer writes or closes it.
  ~CriteoReader();

  /// Nothing after the last batch.
  std::optional<CriteoBatch> next();

  /// Where to go on: the line after the last example given, or behind lines after
  /// it that have none for this reader; counted from 0 over all files. Examples
  /// that were read but not given, before an error or by drop_last, are after it.
  int64_t next_line() const;
  const CriteoReport& report() const;

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = CriteoBatch;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(CriteoReader& reader)
        : reader_(&reader), batch_(reader.next()) {}

    CriteoBatch& operator*() {
      return *batch_;
    }
    CriteoBatch* operator->() {
      return &*batch_;
    }
    Iterator& operator++() {
      batch_ = reader_->next();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const {
      return !batch_.has_value();
    }

   private:
    CriteoReader* reader_;
    std::optional<CriteoBatch> batch_;
  };

  /// The batches that are left.
  Iterator begin() {
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
