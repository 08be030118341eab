// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/criteo_blocks.h"

#include <tessera/common/profile_scope.h>

#include <cstring>

namespace tessera::data {

namespace {

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

}  // namespace

int64_t first_line_in(const LineBlock& lines, const CriteoShard& shard) {
  return (shard.index - lines.first_line % shard.count + shard.count) %
      shard.count;
}

CriteoBlocks::CriteoBlocks(const CriteoReaderOptions& options)
    : options_(options),
      source_(
          {.files = options.files,
           .block_bytes = static_cast<size_t>(options.block_bytes),
           .max_line_bytes = static_cast<size_t>(options.max_line_bytes),
           .padding = kCriteoPadding,
           .start_line = options.start_line,
           .reader = "CriteoReader"}),
      slots_(static_cast<size_t>(options.queue_blocks)) {
  try {
    threads_.emplace_back([this] { read_blocks(); });
    for (int64_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this] { parse_blocks(); });
    }
  } catch (...) {
    close();
    throw;
  }
}

CriteoBlocks::~CriteoBlocks() {
  close();
}

void CriteoBlocks::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void CriteoBlocks::read_blocks() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_ended_) {
    changed_.wait(lock, [&] {
      return is_closing_ ||
          num_read_ - num_freed_ < static_cast<int64_t>(slots_.size());
    });
    if (is_closing_) {
      return;
    }
    CriteoBlock& block = slot(num_read_);
    lock.unlock();
    bool is_read = false;
    block.is_parsed = false;
    block.error = nullptr;
    try {
      // Ends before the block is handed over, so the work for a batch is counted before
      // next() returns it.
      const ProfileScope scope("tessera::read_lines");
      is_read = source_.next(block.lines);
    } catch (...) {
      block.error = std::current_exception();
    }
    lock.lock();
    is_ended_ = !is_read;
    num_read_ += is_read || block.error != nullptr ? 1 : 0;
    changed_.notify_all();
  }
}

void CriteoBlocks::parse_blocks() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return is_closing_ || is_ended_ || num_started_ < num_read_;
    });
    if (is_closing_ || num_started_ == num_read_) {
      return;
    }
    CriteoBlock& block = slot(num_started_++);
    lock.unlock();
    if (block.error == nullptr) {
      try {
        parse(block);
      } catch (...) {
        block.error = std::current_exception();
      }
    }
    lock.lock();
    block.is_parsed = true;
    changed_.notify_all();
  }
}

void CriteoBlocks::parse(CriteoBlock& block) const {
  const ProfileScope scope("tessera::parse_lines");
  if (block.labels == nullptr) {
    make_columns(block);
  }
  block.rows = 0;
  block.malformed.clear();
  const LineBlock& lines = block.lines;
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

const CriteoBlock* CriteoBlocks::next() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (num_freed_ < num_taken_) {
    num_freed_ = num_taken_;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] {
    return num_taken_ < num_read_ ? slot(num_taken_).is_parsed : is_ended_;
  });
  if (num_taken_ == num_read_) {
    return nullptr;
  }
  const CriteoBlock& block = slot(num_taken_++);
  if (block.error != nullptr) {
    std::rethrow_exception(block.error);
  }
  return &block;
}

}  // namespace tessera::data
