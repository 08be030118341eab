// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/criteo_reader.h>
#include <tessera/data/line_source.h>

#include "packages/data/src/criteo_line.h"
#include "packages/data/src/ordered_tasks.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace tessera::data {

/// The name in messages.
inline constexpr const char* kCriteoReader = "CriteoReader";

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
};

/// Blocks that several threads read and parse. The number of blocks is limited.
class CriteoBlocks {
 public:
  /// The options must be valid, with `threads` >= 1 and `queue_blocks` >= 3.
  explicit CriteoBlocks(const CriteoReaderOptions& options);

  /// The next block, in the order of the files, or nullptr at the end. It is valid until
  /// the next call.
  /// Errors:  those of the threads.
  const CriteoBlock* next();

 private:
  struct Item {
    std::shared_ptr<CriteoBlock> block = {};
    int64_t size = 1;
  };
  using Tasks = OrderedTasks<Item>;

  Tasks::Task read_block();
  void parse(CriteoBlock& block) const;
  std::shared_ptr<CriteoBlock> take_free();

  CriteoReaderOptions options_;
  LineSource source_;
  std::mutex mutex_;
  // Blocks whose memory is used again.
  std::vector<std::shared_ptr<CriteoBlock>> free_;
  std::shared_ptr<CriteoBlock> current_;
  Tasks tasks_;  // the last member, as its threads use the others
};

}  // namespace tessera::data
