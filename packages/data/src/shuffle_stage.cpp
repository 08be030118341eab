// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/random_stream.h"
#include "packages/data/src/row_stage.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>
#include <vector>

namespace tessera::data {

namespace {

// Shuffles the rows within blocks. A buffer that takes a new row for each row that it
// gives would move rows further. But to start in the middle of an epoch, it would have to
// read all rows before.
class ShuffleStage : public RowStep {
 public:
  ShuffleStage(RowStagePtr input, const detail::ShuffleOptions& options)
      : RowStep(std::move(input)), options_(options) {}

  RowReader open(int64_t epoch, int64_t first) const override {
    return Reader(*this, epoch, first);
  }
  bool has_fixed_order() const override {
    return false;
  }

 private:
  // Whether all rows are one block.
  bool is_one_block(int64_t epoch) const {
    if (const std::optional<int64_t> size = input().size()) {
      return *size <= options_.buffer;
    }
    int known = is_one_block_.load();
    if (known < 0) {
      known = input().open(epoch, options_.buffer)(1) ? 0 : 1;
      is_one_block_.store(known);
    }
    return known == 1;
  }
  RandomStream random(int64_t epoch, int64_t block) const {
    return RandomStream(
        static_cast<uint64_t>(options_.seed),
        static_cast<uint64_t>(epoch),
        static_cast<uint64_t>(block));
  }

  detail::ShuffleOptions options_;
  // -1 until a reader has found out. The answer is the same in all epochs.
  mutable std::atomic<int> is_one_block_{-1};

  class Reader {
   public:
    Reader(const ShuffleStage& stage, int64_t epoch, int64_t first)
        : stage_(stage), epoch_(epoch) {
      const int64_t buffer = stage.options_.buffer;
      // The number of rows in block 0. Later blocks have `buffer` rows.
      first_size_ = stage.is_one_block(epoch)
          ? buffer
          : 1 + stage.random(epoch, -1).below(buffer);
      int64_t block_begin = 0;
      if (first >= first_size_) {
        block_ = 1 + (first - first_size_) / buffer;
        block_begin = first_size_ + (block_ - 1) * buffer;
      }
      skipped_ = first - block_begin;
      rows_ = stage.input().open(epoch, block_begin);
    }

    std::optional<RowRange> operator()(int64_t max_rows) {
      if (used_ == order_.size() && !read_block()) {
        return std::nullopt;
      }
      const size_t count =
          std::min(static_cast<size_t>(max_rows), order_.size() - used_);
      RowRange result = owned_range(
          gather_rows(range_, std::span(order_).subspan(used_, count)));
      used_ += count;
      return result;
    }

   private:
    bool read_block() {
      range_ = {};
      order_.clear();
      used_ = 0;
      const int64_t size = block_ == 0 ? first_size_ : stage_.options_.buffer;
      std::vector<RowRange> ranges;
      const int64_t rows = read_ranges(rows_, size, ranges);
      if (rows <= skipped_) {
        return false;
      }
      range_ =
          ranges.size() == 1 ? ranges.front() : owned_range(copy_rows(ranges));
      shuffle(rows);
      used_ = static_cast<size_t>(std::exchange(skipped_, 0));
      ++block_;
      return true;
    }

    void shuffle(int64_t rows) {
      order_.resize(rows);
      std::iota(order_.begin(), order_.end(), int64_t{0});
      RandomStream random = stage_.random(epoch_, block_);
      for (int64_t i = rows - 1; i > 0; --i) {
        std::swap(order_[i], order_[random.below(i + 1)]);
      }
    }

    const ShuffleStage& stage_;
    int64_t epoch_;
    int64_t first_size_;
    int64_t block_ = 0;  // the next block to read
    int64_t skipped_;  // rows to skip in that block
    RowReader rows_;
    RowRange range_;
    std::vector<int64_t> order_;
    size_t used_ = 0;  // rows of `order_`
  };
};

}  // namespace

RowStagePtr shuffle_stage(
    RowStagePtr input,
    const detail::ShuffleOptions& options) {
  return std::make_shared<ShuffleStage>(std::move(input), options);
}

}  // namespace tessera::data
