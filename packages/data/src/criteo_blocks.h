// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/line_source.h>
#include "packages/data/src/criteo_line.h"

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
  int64_t row = 0;  // the number of examples before it in its block
  int64_t line = 0;  // the number of lines before it in its block
  std::string_view text = {};  // in the block's text; without the newline
};

/// The first line of the shard, counted from the block's first line. It may come after
/// the block's last line.
int64_t first_line_in(const LineBlock& lines, const CriteoShard& shard);

/// A block of lines and the shard's examples in it.
struct CriteoBlock {
  LineBlock lines = {};
  std::unique_ptr<float[]> labels = {};
  std::unique_ptr<int64_t[]> integers = {};
  std::unique_ptr<int64_t[]> categories = {};
  CriteoRows columns = {};
  int64_t rows = 0;
  std::vector<MalformedLine> malformed = {};  // with kError: the first one
  std::exception_ptr error = {};  // if set, the block has no examples
  bool is_parsed = false;
};

/// Threads that read and parse blocks into a ring of slots, which limits the memory.
/// Block i is in slot i % slots from the moment it is read until block i + 1 is taken.
class CriteoBlocks {
 public:
  /// The options must be valid, with `threads` and `queue_blocks` > 0.
  explicit CriteoBlocks(const CriteoReaderOptions& options);
  ~CriteoBlocks();

  /// The next block, in the order of the files, or nullptr at the end. It is valid until
  /// the next call.
  /// Errors:  those of the threads.
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
  // num_freed_ <= num_taken_ <= num_started_ <= num_read_ <= num_freed_ + slots.
  int64_t num_read_ = 0;
  int64_t num_started_ = 0;  // parsed, or being parsed
  int64_t num_taken_ = 0;
  int64_t num_freed_ = 0;
  bool is_ended_ = false;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::data
