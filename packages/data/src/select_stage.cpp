// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/row_stage.h"

#include "src/common/check.h"

#include <algorithm>
#include <utility>

namespace tessera::data {

namespace {

class SelectStage : public RowStep {
 public:
  SelectStage(
      RowStagePtr input,
      std::shared_ptr<const RowParts> parts,
      uint8_t part)
      : RowStep(std::move(input)),
        parts_(std::move(parts)),
        part_(part),
        size_(std::count(parts_->begin(), parts_->end(), part)) {}

  RowReader open(int64_t epoch, int64_t first) const override {
    return Reader(*this, epoch, first);
  }
  std::optional<int64_t> size() const override {
    return size_;
  }

 private:
  int64_t num_rows() const {
    return static_cast<int64_t>(parts_->size());
  }
  bool has(int64_t row) const {
    return (*parts_)[static_cast<size_t>(row)] == part_;
  }

  std::shared_ptr<const RowParts> parts_;
  uint8_t part_;
  int64_t size_;

  class Reader {
   public:
    Reader(const SelectStage& stage, int64_t epoch, int64_t first)
        : stage_(stage) {
      int64_t skipped = 0;
      for (; row_ < stage.num_rows() && (skipped < first || !stage.has(row_));
           ++row_) {
        skipped += stage.has(row_) ? 1 : 0;
      }
      if (row_ < stage.num_rows()) {
        rows_ = stage.input().open(epoch, row_);
      }
      end_ = row_;
    }

    std::optional<RowRange> operator()(int64_t max_rows) {
      while (true) {
        if (row_ == end_ || left_ > max_rows) {
          find_end(max_rows);
        }
        if (left_ == 0) {
          return std::nullopt;
        }
        const std::optional<RowRange> range = rows_(end_ - row_);
        TESSERA_CHECK_VALUE(
            range.has_value(),
            "[Dataset] expected {} examples before the split, as when it was made, but got {}. Do not change the files while they are read.",
            stage_.num_rows(),
            row_);
        std::vector<int64_t> kept;
        for (int64_t i = 0; i < range->count; ++i) {
          if (stage_.has(row_ + i)) {
            kept.push_back(i);
          }
        }
        const auto count = static_cast<int64_t>(kept.size());
        row_ += range->count;
        left_ -= count;
        if (count == range->count) {
          return range;
        }
        if (count > 0) {
          return owned_range(gather_rows(*range, kept));
        }
      }
    }

   private:
    // Finds the rows to read next, which end with a row of the part.
    void find_end(int64_t max_rows) {
      end_ = row_;
      left_ = 0;
      const int64_t limit = std::max(max_rows, kScanRows);
      for (int64_t row = row_; row < stage_.num_rows() && left_ < max_rows &&
           (left_ == 0 || row - row_ < limit);
           ++row) {
        if (stage_.has(row)) {
          ++left_;
          end_ = row + 1;
        }
      }
    }

    const SelectStage& stage_;
    int64_t row_ = 0;  // the next row of the input
    int64_t end_ = 0;  // the end of the rows to read next, if left_ > 0
    int64_t left_ = 0;  // how many of them are of the part
    RowReader rows_;
  };
};

}  // namespace

RowStagePtr select_stage(
    RowStagePtr input,
    std::shared_ptr<const RowParts> parts,
    uint8_t part) {
  return std::make_shared<SelectStage>(
      std::move(input), std::move(parts), part);
}

}  // namespace tessera::data
