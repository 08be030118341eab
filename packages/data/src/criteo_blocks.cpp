// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/criteo_blocks.h"

#include <tessera/common/profile_scope.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

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

// One thread reads while the others parse. Of the blocks in memory, the caller has one,
// each thread may have one, and at least one waits.
int64_t num_threads(const CriteoReaderOptions& options) {
  return std::min(options.threads + 1, options.queue_blocks - 2);
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
           .reader = kCriteoReader}),
      tasks_(
          [this] { return read_block(); },
          num_threads(options),
          options.queue_blocks - 1 - num_threads(options)) {}

CriteoBlocks::Tasks::Task CriteoBlocks::read_block() {
  std::shared_ptr<CriteoBlock> block = take_free();
  {
    // The scope ends before the block is handed over, so the work for a batch is counted
    // before next() returns the batch.
    const ProfileScope scope("tessera::read_lines");
    if (!source_.next(block->lines)) {
      return nullptr;
    }
  }
  return [this, block]() mutable -> std::optional<Item> {
    if (block == nullptr) {
      return std::nullopt;
    }
    parse(*block);
    return Item{.block = std::exchange(block, nullptr)};
  };
}

std::shared_ptr<CriteoBlock> CriteoBlocks::take_free() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) {
    return std::make_shared<CriteoBlock>();
  }
  std::shared_ptr<CriteoBlock> block = std::move(free_.back());
  free_.pop_back();
  return block;
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
  if (current_ != nullptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(current_));
  }
  std::optional<Item> item = tasks_.next();
  current_ = item ? std::move(item->block) : nullptr;
  return current_.get();
}

}  // namespace tessera::data
