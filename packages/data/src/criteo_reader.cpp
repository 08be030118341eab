// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/criteo_reader.h>

#include <tessera/common/profile_scope.h>
#include <tessera/data/line_source.h>

#include "packages/data/src/criteo_line.h"
#include "packages/data/src/ordered_tasks.h"
#include "packages/data/src/reader_checks.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <utility>

namespace tessera::data {

namespace {

// The name in messages.
constexpr const char* kCriteoReader = "CriteoReader";

struct MalformedLine {
  int64_t row = 0;  // the number of examples before it in its block
  int64_t line = 0;  // the number of lines before it in its block
  std::string_view text = {};  // in the block's text; without the newline
};

// The first line of the shard, counted from the block's first line. It may come after
// the block's last line.
int64_t first_line_in(
    const LineSource::Block& lines,
    const CriteoReaderOptions::Shard& shard) {
  return (shard.index - lines.first_line % shard.count + shard.count) %
      shard.count;
}

// A block of lines and the shard's examples in it.
struct CriteoBlock {
  LineSource::Block lines = {};
  std::unique_ptr<float[]> labels = {};
  std::unique_ptr<int64_t[]> integers = {};
  std::unique_ptr<int64_t[]> categories = {};
  CriteoRows columns = {};
  int64_t rows = 0;
  std::vector<MalformedLine> malformed = {};  // only the first one with kError
};

constexpr size_t kPageBytes = 4096;
constexpr size_t kCacheLineBytes = 64;

// The distance between two columns: a number of pages and one cache line. Columns that
// begin at the same offset in their pages would compete for the same few cache lines.
int64_t stride_of(size_t rows) {
  constexpr size_t kInPage = kPageBytes / sizeof(int64_t);
  return static_cast<int64_t>(
      (rows + kInPage - 1) / kInPage * kInPage +
      kCacheLineBytes / sizeof(int64_t));
}

// Allocates for the largest possible number of rows. Pages that no row needs take no
// memory, because they are never written.
void make_columns(CriteoBlock& block) {
  const int64_t stride =
      stride_of(block.lines.text.size() / kShortestCriteoLine);
  block.labels =
      std::make_unique_for_overwrite<float[]>(static_cast<size_t>(stride));
  block.integers = std::make_unique_for_overwrite<int64_t[]>(
      static_cast<size_t>(kCriteoIntegers * stride));
  block.categories = std::make_unique_for_overwrite<int64_t[]>(
      static_cast<size_t>(kCriteoCategories * stride));
  block.columns = {
      .labels = block.labels.get(),
      .integers = block.integers.get(),
      .categories = block.categories.get(),
      .stride = stride};
}

// One thread reads while the others parse. Of the blocks in memory, the caller has one,
// each thread may have one, and at least one waits.
int64_t num_threads(const CriteoReaderOptions& options) {
  return std::min(options.threads + 1, options.queue_blocks - 2);
}

// Blocks that several threads read and parse. The number of blocks is limited.
class CriteoBlocks {
 public:
  // The options must be valid, with `threads` >= 1 and `queue_blocks` >= 3.
  explicit CriteoBlocks(const CriteoReaderOptions& options)
      : options_(options),
        source_(
            {.files = options.files,
             .block_bytes = static_cast<size_t>(options.block_bytes),
             .max_line_bytes = static_cast<size_t>(options.max_line_bytes),
             .padding = kCriteoPadding,
             .start_line = options.start_line,
             .reader = kCriteoReader}),
        tasks_(
            [this] { return read_block(); },
            num_threads(options),
            options.queue_blocks - 1 - num_threads(options)) {}

  // The next block, in the order of the files, or nullptr at the end. It is valid until
  // the next call.
  // Errors:  those of the threads.
  const CriteoBlock* next() {
    if (current_ != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex_);
      free_.push_back(std::move(current_));
    }
    current_ = tasks_.next().value_or(nullptr);
    return current_.get();
  }

 private:
  using BlockPtr = std::shared_ptr<CriteoBlock>;
  using Tasks = OrderedTasks<BlockPtr>;

  Tasks::Task read_block() {
    std::shared_ptr<CriteoBlock> block = take_free();
    {
      // The scope ends before the block is handed over, so the work for a batch is counted
      // before next() returns the batch.
      const ProfileScope scope("tessera::read_lines");
      if (!source_.next(block->lines)) {
        return nullptr;
      }
    }
    return [this, block]() mutable -> std::optional<BlockPtr> {
      if (block == nullptr) {
        return std::nullopt;
      }
      parse(*block);
      return std::exchange(block, nullptr);
    };
  }

  void parse(CriteoBlock& block) const {
    const ProfileScope scope("tessera::parse_lines");
    if (block.labels == nullptr) {
      make_columns(block);
    }
    block.rows = 0;
    block.malformed.clear();
    const LineSource::Block& lines = block.lines;
    const char* text = lines.text.data() + lines.begin;
    const char* end = lines.text.data() + lines.end;
    const auto find_newline = [&](const char* begin) {
      return static_cast<const char*>(
          std::memchr(begin, '\n', static_cast<size_t>(end - begin)));
    };
    int64_t shard_line = first_line_in(lines, options_.shard);
    for (int64_t line = 0; text < end; ++line) {
      if (line != shard_line) {
        text = find_newline(text) + 1;
        continue;
      }
      shard_line += options_.shard.count;
      const char* next = parse_criteo_line(text, block.rows, block.columns);
      if (next != nullptr && next - text - 1 <= options_.max_line_bytes) {
        ++block.rows;
        text = next;
        continue;
      }
      const char* newline = find_newline(text);
      block.malformed.push_back(
          {.row = block.rows,
           .line = line,
           .text = {text, static_cast<size_t>(newline - text)}});
      if (options_.malformed_lines == MalformedLines::kError) {
        return;
      }
      text = newline + 1;
    }
  }

  std::shared_ptr<CriteoBlock> take_free() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      return std::make_shared<CriteoBlock>();
    }
    std::shared_ptr<CriteoBlock> block = std::move(free_.back());
    free_.pop_back();
    return block;
  }

  CriteoReaderOptions options_;
  LineSource source_;
  std::mutex mutex_;
  // Blocks whose memory is used again.
  std::vector<std::shared_ptr<CriteoBlock>> free_;
  std::shared_ptr<CriteoBlock> current_;
  Tasks tasks_;  // the last member, as its threads use the others
};

// Checks the options and replaces zeros by the values that they stand for.
CriteoReaderOptions validated(CriteoReaderOptions options) {
  constexpr int64_t kMaxValue = int64_t{1} << 30;
  constexpr int64_t kMinBlocks = 3;
  constexpr int64_t kMaxBlocks = 4096;
  constexpr int64_t kMaxLine = int64_t{1} << 62;
  check_files(kCriteoReader, options.files, "CriteoReaderOptions::files");
  const auto check =
      [](const char* name, int64_t value, int64_t low, int64_t high) {
        check_option(kCriteoReader, name, value, low, high);
      };
  check("batch_size", options.batch_size, 1, kMaxValue);
  check("start_line", options.start_line, 0, kMaxLine);
  check("shard.count", options.shard.count, 1, kMaxValue);
  check("shard.index", options.shard.index, 0, options.shard.count - 1);
  check("queue_blocks", options.queue_blocks, 0, kMaxBlocks);
  check("block_bytes", options.block_bytes, 1, kMaxValue);
  check("max_line_bytes", options.max_line_bytes, 1, kMaxValue);
  check_malformed_options(
      kCriteoReader, options.malformed_lines, options.max_malformed_lines);
  for (const std::string& file : options.files) {
    check_readable(file, kCriteoReader);
  }
  options.threads = checked_threads(kCriteoReader, options.threads);
  options.queue_blocks = options.queue_blocks == 0
      ? 2 * options.threads + 2
      : std::max(options.queue_blocks, kMinBlocks);
  return options;
}

void check_shape(
    const char* name,
    const at::Tensor& tensor,
    at::ScalarType type,
    at::IntArrayRef shape) {
  TESSERA_CHECK_VALUE(
      tensor.defined() && tensor.scalar_type() == type &&
          tensor.sizes() == shape,
      "[CriteoBatch] {} must be {} {}, but got {}.",
      name,
      type,
      shape,
      describe(tensor));
}

}  // namespace

void validate(const CriteoReaderOptions& options) {
  validated(options);
}

Columns to_columns(const CriteoBatch& batch) {
  TESSERA_CHECK_VALUE(
      batch.labels.defined() && batch.labels.dim() == 1,
      "[CriteoBatch] labels must be float32 [batch], but got {}.",
      describe(batch.labels));
  const int64_t size = batch.labels.numel();
  check_shape("labels", batch.labels, at::kFloat, {size});
  check_shape("integers", batch.integers, at::kLong, {size, kCriteoIntegers});
  check_shape(
      "categories", batch.categories, at::kLong, {size, kCriteoCategories});
  Columns columns;
  columns.add("label", {.values = batch.labels});
  const auto add = [&](const char* prefix, const at::Tensor& values) {
    for (int64_t i = 0; i < values.size(1); ++i) {
      columns.add(
          prefix + std::to_string(i + 1),
          {.values = values.select(1, i).contiguous()});
    }
  };
  add("I", batch.integers);
  add("C", batch.categories);
  return columns;
}

class CriteoReader::Batches {
 public:
  explicit Batches(CriteoReaderOptions options)
      : options_(std::move(options)),
        next_line_(options_.start_line),
        block_end_(options_.start_line),
        blocks_(options_) {}

  std::optional<CriteoBatch> next() {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
    try {
      return read();
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  int64_t next_line() const {
    return next_line_;
  }
  const CriteoReport& report() const {
    return report_;
  }

 private:
  // Tensors of a batch, column by column.
  struct Storage {
    at::Tensor labels = {};  // [batch]
    at::Tensor integers = {};  // [13, batch]
    at::Tensor categories = {};  // [26, batch]
    int64_t filled = 0;
  };

  std::optional<CriteoBatch> read() {
    const bool returns_last_batch =
        options_.malformed_lines == MalformedLines::kSkip &&
        !options_.drop_last;
    Storage storage;
    while (storage.filled < options_.batch_size) {
      if (block_ == nullptr) {
        try {
          if (!take_block(
                  report_.examples +
                  (returns_last_batch ? storage.filled : 0))) {
            break;
          }
        } catch (...) {
          if (!returns_last_batch || storage.filled == 0) {
            throw;
          }
          error_ = std::current_exception();  // for the next call
          break;
        }
      }
      const int64_t rows = std::min(
          rows_before_malformed(), options_.batch_size - storage.filled);
      if (rows > 0) {
        copy_rows(storage, rows);
      } else if (malformed_ < block_->malformed.size()) {
        count(block_->malformed[malformed_++]);
      } else {
        block_end_ = block_->lines.first_line + block_->lines.lines;
        block_ = nullptr;
      }
    }
    return finish(std::move(storage));
  }

  // `examples` is the number of examples that the caller gets before the error.
  bool take_block(int64_t examples) {
    try {
      block_ = blocks_.next();
    } catch (const LineSource::StartAfterEnd&) {
      throw;
    } catch (const c10::ValueError& error) {
      TESSERA_CHECK_VALUE(
          false,
          "{} The reader gave {} examples before this error.",
          error.what_without_backtrace(),
          examples);
    }
    if (block_ == nullptr) {
      return false;
    }
    row_ = 0;
    malformed_ = 0;
    report_.bytes +=
        static_cast<int64_t>(block_->lines.end - block_->lines.begin);
    return true;
  }

  // The number of examples before the next malformed line or the end of the block.
  int64_t rows_before_malformed() const {
    const auto& malformed = block_->malformed;
    return (malformed_ < malformed.size() ? malformed[malformed_].row
                                          : block_->rows) -
        row_;
  }

  void count(const MalformedLine& line) {
    const auto describe = [&] {
      return fmt::format(
          "'{}' line {}: {}",
          options_.files[block_->lines.file],
          block_->lines.first_line_of_file + line.line + 1,
          criteo_line_problem(
              line.text, static_cast<size_t>(options_.max_line_bytes)));
    };
    count_malformed(
        kCriteoReader,
        options_.malformed_lines,
        options_.max_malformed_lines,
        describe,
        report_);
  }

  void copy_rows(Storage& storage, int64_t count) {
    const int64_t size = options_.batch_size;
    if (!storage.labels.defined()) {
      storage.labels = at::empty({size}, at::kFloat);
      storage.integers = at::empty({kCriteoIntegers, size}, at::kLong);
      storage.categories = at::empty({kCriteoCategories, size}, at::kLong);
    }
    const CriteoRows& from = block_->columns;
    std::copy_n(
        from.labels + row_,
        count,
        storage.labels.mutable_data_ptr<float>() + storage.filled);
    const auto copy = [&](const int64_t* values, const at::Tensor& to) {
      int64_t* target = to.mutable_data_ptr<int64_t>() + storage.filled;
      for (int64_t i = 0; i < to.size(0); ++i) {
        std::copy_n(values + i * from.stride + row_, count, target + i * size);
      }
    };
    copy(from.integers, storage.integers);
    copy(from.categories, storage.categories);
    storage.filled += count;
    row_ += count;
  }

  int64_t line_after_used() const {
    if (block_ == nullptr) {
      return block_end_;
    }
    const LineSource::Block& lines = block_->lines;
    const auto used = row_ + static_cast<int64_t>(malformed_);  // > 0
    return lines.first_line + first_line_in(lines, options_.shard) +
        (used - 1) * options_.shard.count + 1;
  }

  std::optional<CriteoBatch> finish(Storage storage) {
    const bool is_full = storage.filled == options_.batch_size;
    if (storage.filled == 0 || (!is_full && options_.drop_last)) {
      return std::nullopt;
    }
    if (!is_full) {
      const auto shorten = [&](const at::Tensor& tensor) {
        return tensor.narrow(-1, 0, storage.filled).clone();
      };
      storage.labels = shorten(storage.labels);
      storage.integers = shorten(storage.integers);
      storage.categories = shorten(storage.categories);
    }
    report_.examples += storage.filled;
    next_line_ = line_after_used();
    return CriteoBatch{
        .labels = storage.labels,
        .integers = storage.integers.t(),
        .categories = storage.categories.t()};
  }

  CriteoReaderOptions options_;
  CriteoReport report_;
  int64_t next_line_;
  int64_t block_end_;  // the line after the last finished block
  std::exception_ptr error_;
  const CriteoBlock* block_ = nullptr;
  int64_t row_ = 0;  // the number of copied examples of the block
  size_t malformed_ = 0;  // the number of counted malformed lines of the block
  CriteoBlocks blocks_;
};

CriteoReader::CriteoReader(CriteoReaderOptions options)
    : batches_(std::make_unique<Batches>(validated(std::move(options)))) {}

CriteoReader::CriteoReader(CriteoReader&&) noexcept = default;
CriteoReader& CriteoReader::operator=(CriteoReader&&) noexcept = default;
CriteoReader::~CriteoReader() = default;

CriteoReader::Batches& CriteoReader::batches() const {
  TESSERA_CHECK(
      batches_ != nullptr,
      "[CriteoReader] expected a reader, but got one that was moved from. Use the reader that it was moved to.");
  return *batches_;
}

std::optional<CriteoBatch> CriteoReader::next() {
  const ProfileScope scope("tessera::CriteoReader");
  return batches().next();
}

int64_t CriteoReader::next_line() const {
  return batches().next_line();
}

const CriteoReport& CriteoReader::report() const& {
  return batches().report();
}

}  // namespace tessera::data
