// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/data/criteo_line.h"
#include "src/data/line_source.h"

#include <tessera/data/criteo_reader.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace tessera::data {

struct MalformedLine {
  int64_t row = 0;  // that it would have had in its block
  int64_t line = 0;  // in its block
  std::string_view text = {};  // in the block's text, without the newline
};

/// Of the block's lines, the first one of the shard; it may be behind the last.
int64_t first_line_in(const LineBlock& lines, const CriteoShard& shard);

/// A block of lines, and the shard's examples in it.
struct CriteoBlock {
  LineBlock lines = {};
  std::unique_ptr<float[]> labels = {};
  std::unique_ptr<int64_t[]> integers = {};
  std::unique_ptr<int64_t[]> categories = {};
  CriteoRows columns = {};
  int64_t rows = 0;
  std::vector<MalformedLine> malformed = {};  // with kError: the first one
  std::exception_ptr error = {};  // instead of the lines
  bool is_parsed = false;
};

/// Threads that read and parse blocks into a ring of slots, which bounds the
/// memory. Block i is in slot i % slots, from when it is read until the next one is
/// taken.
class CriteoBlocks {
 public:
  /// The options have been validated, and say how many threads and blocks.
  explicit CriteoBlocks(const CriteoReaderOptions& options);
  ~CriteoBlocks();

  /// Blocks in the order of the files; valid until the next call. nullptr at the
  /// end.
  /// Errors:  what went wrong in a thread.
  const CriteoBlock* next();

 private:
  void read_blocks();
  void parse_blocks();
  void parse(CriteoBlock& block) const;
  void close();
  CriteoBlock& slot(int64_t block) {
    return slots_[static_cast<size_t>(block) % slots_.size()];
  }

  CriteoReaderOptions options_;
  LineSource source_;
  std::vector<CriteoBlock> slots_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Blocks so far; freed_ <= taken_ <= parsing_ <= read_ <= freed_ + slots.
  int64_t read_ = 0;
  int64_t parsing_ = 0;  // begun
  int64_t taken_ = 0;
  int64_t freed_ = 0;
  bool is_ended_ = false;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::data
