// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/dataset.h>

#include "packages/data/src/random_stream.h"
#include "packages/data/src/row_stage.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <numeric>
#include <span>
#include <vector>

namespace tessera::data {

namespace {

constexpr int64_t kAllRows = std::numeric_limits<int64_t>::max();

RowStagePtr columns_stage(Columns columns) {
  const auto shared = std::make_shared<Columns>(contiguous(std::move(columns)));
  const auto open = [shared](int64_t, int64_t first) {
    return read_columns(shared, first);
  };
  const auto size = [shared] { return shared->batch_size(); };
  return make_stage({open, size, /*has_fixed_order=*/true});
}

// Checks that a source gives the same columns and the same number of examples each time.
struct CheckedSource {
  void check_columns(const Columns& columns) {
    const std::lock_guard<std::mutex> lock(mutex);
    kinds.check(columns, "[Dataset] the source:");
  }

  // Checks the number of examples after a reader has read the last one.
  void check_count(int64_t found) {
    const std::lock_guard<std::mutex> lock(mutex);
    const int64_t expected = source->size().value_or(count.value_or(found));
    count = expected;
    TESSERA_CHECK_VALUE(
        found == expected,
        "[Dataset] expected {} examples from the source, but got {}. Do not change the files while they are read.",
        expected,
        found);
  }

  std::shared_ptr<const ExampleSource> source;
  std::mutex mutex = {};
  ColumnKinds kinds = {};
  std::optional<int64_t> count = {};  // after the first complete epoch
};

class SourceReader {
 public:
  SourceReader(std::shared_ptr<CheckedSource> source, int64_t first)
      : source_(std::move(source)),
        rows_(first),
        reader_(source_->source->open(first)) {
    TESSERA_CHECK_VALUE(
        reader_ != nullptr,
        "[Dataset] open() of the source returned no reader. Return one, or raise an error.");
  }

  std::optional<RowRange> operator()(int64_t max_rows) {
    if (left_.count == 0 && !read()) {
      return std::nullopt;
    }
    const int64_t count = std::min(max_rows, left_.count);
    RowRange range = part_of(left_, 0, count);
    left_ = part_of(left_, count, left_.count - count);
    return range;
  }

 private:
  bool read() {
    if (has_ended_) {
      return false;
    }
    left_ = {};
    std::optional<Columns> columns = reader_->next();
    if (!columns) {
      has_ended_ = true;
      if (has_read_) {  // otherwise, the reader may have begun after the end
        source_->check_count(rows_);
      } else if (rows_ == 0) {
        source_->check_count(0);
      }
      return false;
    }
    has_read_ = true;
    source_->check_columns(*columns);
    left_.columns = std::make_shared<Columns>(contiguous(std::move(*columns)));
    left_.count = left_.columns->batch_size();
    TESSERA_CHECK_VALUE(
        left_.count > 0,
        "[Dataset] the source returned columns without examples. Return at least one example, or nullopt at the end.");
    rows_ += left_.count;
    return true;
  }

  std::shared_ptr<CheckedSource> source_;
  int64_t rows_;  // the number of the next row that the source gives
  std::shared_ptr<ExampleReader> reader_;
  RowRange left_;
  bool has_read_ = false;
  bool has_ended_ = false;
};

RowStagePtr source_stage(std::shared_ptr<const ExampleSource> source) {
  const std::shared_ptr<CheckedSource> checked(
      new CheckedSource{std::move(source)});
  const auto open = [checked](int64_t, int64_t first) {
    return SourceReader(checked, first);
  };
  const auto size = [checked] { return checked->source->size(); };
  return make_stage({open, size, /*has_fixed_order=*/true});
}

// Skips `begin` rows, and gives up to `count` of the rows after them.
RowStagePtr slice_stage(
    const RowStagePtr& input,
    int64_t begin,
    int64_t count) {
  const auto open = [=](int64_t epoch, int64_t first) -> RowReader {
    if (first >= count) {
      return [](int64_t) { return std::optional<RowRange>(); };
    }
    return [rows = input->open(
                epoch, first > kAllRows - begin ? kAllRows : first + begin),
            left = count -
                first](int64_t max_rows) mutable -> std::optional<RowRange> {
      if (left == 0) {
        return std::nullopt;
      }
      std::optional<RowRange> range = rows(std::min(max_rows, left));
      left -= range ? range->count : 0;
      return range;
    };
  };
  const auto size = [=] {
    const std::optional<int64_t> size = input->size();
    return size ? std::clamp<int64_t>(*size - begin, 0, count) : size;
  };
  return make_stage({open, size, input->has_fixed_order});
}

RowStagePtr concatenate_stage(const RowStagePtr& one, const RowStagePtr& two) {
  // -1 until a reader has counted. The number is the same in all epochs.
  const auto known = std::make_shared<std::atomic<int64_t>>(-1);
  // The number of examples in the first dataset. Reads them if there is no other way.
  const auto first_size = [=](int64_t epoch) {
    if (const std::optional<int64_t> size = one->size()) {
      return *size;
    }
    int64_t count = known->load();
    if (count < 0) {
      count = 0;
      const RowReader rows = one->open(epoch, 0);
      while (const std::optional<RowRange> range = rows(kScanRows)) {
        count += range->count;
      }
      known->store(count);
    }
    return count;
  };
  const auto open = [=](int64_t epoch, int64_t first) {
    const bool begins_second = first > 0 && first >= first_size(epoch);
    RowReader begin = begins_second
        ? two->open(epoch, first - first_size(epoch))
        : one->open(epoch, first);
    return [two,
            epoch,
            rows = std::move(begin),
            is_second = begins_second,
            kinds = ColumnKinds()](int64_t max_rows) mutable {
      std::optional<RowRange> range = rows(max_rows);
      if (!range && !is_second) {
        is_second = true;
        rows = two->open(epoch, 0);
        range = rows(max_rows);
      }
      if (range) {
        kinds.check(*range->columns, "[Dataset] concatenate():");
      }
      return range;
    };
  };
  const auto size = [=] {
    const std::optional<int64_t> first = one->size();
    const std::optional<int64_t> second = two->size();
    return first && second ? std::optional(*first + *second) : std::nullopt;
  };
  return make_stage({open, size, one->has_fixed_order && two->has_fixed_order});
}

using Predicate = std::function<at::Tensor(const Columns&)>;

// The numbers of the rows that the predicate of filter() keeps.
std::vector<int64_t> kept_rows(
    const Columns& columns,
    const Predicate& predicate) {
  const at::Tensor result = predicate(columns);
  TESSERA_CHECK_TYPE(
      result.defined() && result.scalar_type() == at::kBool,
      "[Dataset] the predicate of filter() must return bool [{}], but got {}. Compare columns, such as values > 0.",
      columns.batch_size(),
      describe(result));
  TESSERA_CHECK_VALUE(
      result.layout() == at::kStrided && result.device().is_cpu() &&
          result.dim() == 1 && result.numel() == columns.batch_size(),
      "[Dataset] the predicate of filter() must return bool [{}] on the CPU, one for each example, but got {}.",
      columns.batch_size(),
      describe(result));
  const at::Tensor rows = result.nonzero().flatten().contiguous();
  const auto* begin = rows.const_data_ptr<int64_t>();
  return {begin, begin + rows.numel()};
}

RowStagePtr map_stage(
    const RowStagePtr& input,
    const detail::MapFunction& map) {
  const auto open = [=](int64_t epoch, int64_t first) {
    return [&map,
            rows = input->open(epoch, first),
            context = MapContext{.epoch = epoch, .first_row = first},
            kinds = ColumnKinds()](
               int64_t max_rows) mutable -> std::optional<RowRange> {
      std::optional<RowRange> range = rows(max_rows);
      if (!range) {
        return std::nullopt;
      }
      const int64_t count = range->count;
      RowRange result = owned_range(
          contiguous(map(take_rows(std::move(*range)), MapContext(context))));
      TESSERA_CHECK_VALUE(
          result.count == count,
          "[Dataset] the function of map() got {} examples, but returned {}. Return as many; use filter() to drop examples, or map() after batch().",
          count,
          result.count);
      kinds.check(*result.columns, "[Dataset] the function of map():");
      context.first_row += count;
      return result;
    };
  };
  return make_stage({open, input->size, input->has_fixed_order});
}

// The examples of a stage, which the first reader loads.
struct Cache {
  // Other readers wait until the first one has loaded the examples.
  std::shared_ptr<Columns> load() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (columns != nullptr) {
      return columns;
    }
    std::vector<RowRange> ranges;
    int64_t bytes = 0;
    int64_t rows = 0;
    const RowReader read = input->open(0, 0);
    while (const std::optional<RowRange> range = read(kScanRows)) {
      bytes += bytes_of(*range);
      rows += range->count;
      TESSERA_CHECK_VALUE(
          bytes <= max_bytes,
          "[Dataset] cache() got more than max_bytes = {} bytes in the first {} examples. Increase max_bytes, cache fewer columns, or leave cache() out.",
          max_bytes,
          rows);
      ranges.push_back(*range);
    }
    columns = std::make_shared<Columns>(
        ranges.empty() ? Columns() : copy_rows(ranges));
    return columns;
  }

  RowStagePtr input;
  int64_t max_bytes;
  std::mutex mutex = {};
  std::shared_ptr<Columns> columns = {};
};

// Shuffles the rows within blocks. A buffer that takes a new row for each row that it
// gives would move rows further. But to start in the middle of an epoch, it would have to
// read all rows before.
struct Shuffle {
  // Whether all rows are one block.
  bool is_one_block(int64_t epoch) {
    if (const std::optional<int64_t> size = input->size()) {
      return *size <= options.buffer;
    }
    int known = one_block.load();
    if (known < 0) {
      known = input->open(epoch, options.buffer)(1) ? 0 : 1;
      one_block.store(known);
    }
    return known == 1;
  }

  RandomStream random(int64_t epoch, int64_t block) const {
    return RandomStream(
        static_cast<uint64_t>(options.seed),
        static_cast<uint64_t>(epoch),
        static_cast<uint64_t>(block));
  }

  RowStagePtr input;
  detail::ShuffleOptions options;
  // -1 until a reader has found out. The answer is the same in all epochs.
  std::atomic<int> one_block = -1;
};

RowReader shuffle_reader(
    const std::shared_ptr<Shuffle>& shuffle,
    int64_t epoch,
    int64_t first) {
  const int64_t buffer = shuffle->options.buffer;
  // The number of rows in block 0. Later blocks have `buffer` rows.
  const int64_t first_size = shuffle->is_one_block(epoch)
      ? buffer
      : 1 + shuffle->random(epoch, -1).below(buffer);
  int64_t block = 0;
  int64_t block_begin = 0;
  if (first >= first_size) {
    block = 1 + (first - first_size) / buffer;
    block_begin = first_size + (block - 1) * buffer;
  }
  const auto read_block = [=, rows = shuffle->input->open(epoch, block_begin)](
                              int64_t) mutable -> std::optional<PickedRows> {
    std::vector<RowRange> ranges;
    const int64_t size =
        read_ranges(rows, block == 0 ? first_size : buffer, ranges);
    if (size == 0) {
      return std::nullopt;
    }
    PickedRows picked{
        .range = ranges.size() == 1 ? ranges.front()
                                    : owned_range(copy_rows(ranges)),
        .rows = std::vector<int64_t>(size)};
    std::iota(picked.rows.begin(), picked.rows.end(), int64_t{0});
    RandomStream random = shuffle->random(epoch, block++);
    for (int64_t i = size - 1; i > 0; --i) {
      std::swap(picked.rows[i], picked.rows[random.below(i + 1)]);
    }
    return picked;
  };
  return picked_rows(read_block, first - block_begin);
}

void check_count_argument(const char* function, int64_t count) {
  TESSERA_CHECK_VALUE(
      count >= 0,
      "[Dataset] {}() expected a number of examples >= 0, but got {}.",
      function,
      count);
}

// Reads the examples of a stage in chunks.
class StageReader : public ExampleReader {
 public:
  StageReader(RowStagePtr stage, int64_t epoch, int64_t first)
      : stage_(std::move(stage)), rows_(stage_->open(epoch, first)) {}

  std::optional<Columns> next() override {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
    try {
      std::optional<RowRange> range = rows_(kScanRows);
      if (!range) {
        return std::nullopt;
      }
      return take_rows(std::move(*range));
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

 private:
  RowStagePtr stage_;
  RowReader rows_;
  std::exception_ptr error_;
};

}  // namespace

RowReader read_columns(std::shared_ptr<Columns> columns, int64_t first) {
  const int64_t end = columns->batch_size();
  return [columns = std::move(columns), next = std::min(first, end), end](
             int64_t max_rows) mutable -> std::optional<RowRange> {
    if (next == end) {
      return std::nullopt;
    }
    const int64_t count = std::min(max_rows, end - next);
    next += count;
    return RowRange{.columns = columns, .first = next - count, .count = count};
  };
}

int64_t read_ranges(
    const RowReader& rows,
    int64_t count,
    std::vector<RowRange>& ranges) {
  int64_t left = count;
  while (left > 0) {
    std::optional<RowRange> range = rows(left);
    if (!range) {
      break;
    }
    left -= range->count;
    ranges.push_back(std::move(*range));
  }
  return count - left;
}

RowReader picked_rows(
    std::function<std::optional<PickedRows>(int64_t max_rows)> pick,
    int64_t skipped) {
  return [pick = std::move(pick),
          skipped,
          picked = PickedRows(),
          used =
              int64_t{0}](int64_t max_rows) mutable -> std::optional<RowRange> {
    while (used == std::ssize(picked.rows)) {
      picked = {};  // frees the rows before the next ones are read
      used = 0;
      std::optional<PickedRows> next = pick(max_rows);
      if (!next) {
        return std::nullopt;
      }
      picked = std::move(*next);
      used = std::min(skipped, std::ssize(picked.rows));
      skipped -= used;
    }
    const int64_t count = std::min(max_rows, std::ssize(picked.rows) - used);
    const auto rows = std::span(picked.rows).subspan(used, count);
    used += count;
    if (std::ssize(picked.rows) == picked.range.count &&
        std::ranges::is_sorted(rows) &&
        rows.back() - rows.front() == count - 1) {
      return part_of(picked.range, rows.front(), count);
    }
    return owned_range(gather_rows(picked.range, rows));
  };
}

void scan_rows(
    const Dataset& dataset,
    c10::function_ref<void(const RowRange&, int64_t)> use) {
  const RowReader rows = DatasetAccess::stage(dataset)->open(0, 0);
  int64_t first = 0;
  while (const std::optional<RowRange> range = rows(kScanRows)) {
    use(*range, first);
    first += range->count;
  }
}

Dataset::Dataset(std::shared_ptr<const RowStage> stage)
    : stage_(std::move(stage)) {}

Dataset::Dataset(std::shared_ptr<const ExampleSource> source) {
  TESSERA_CHECK_VALUE(
      source != nullptr,
      "[Dataset] expected a source, but got a null pointer. Pass an ExampleSource.");
  stage_ = source_stage(std::move(source));
}

Dataset::Dataset(Columns columns) {
  TESSERA_CHECK_VALUE(
      !columns.entries().empty(),
      "[Dataset] expected at least one column, but got none. Add columns with Columns::add().");
  stage_ = columns_stage(std::move(columns));
}

Dataset Dataset::shuffle(const detail::ShuffleOptions& options) const {
  TESSERA_CHECK_VALUE(
      options.buffer >= 1,
      "[Dataset] buffer of shuffle() must be >= 1, but got {}. Set it to the number of examples that fit into memory.",
      options.buffer);
  const std::shared_ptr<Shuffle> shuffle(new Shuffle{stage_, options});
  const auto open = [shuffle](int64_t epoch, int64_t first) {
    return shuffle_reader(shuffle, epoch, first);
  };
  return Dataset(make_stage({open, stage_->size, /*has_fixed_order=*/false}));
}

Dataset Dataset::take(int64_t count) const {
  check_count_argument("take", count);
  return Dataset(slice_stage(stage_, 0, count));
}

Dataset Dataset::skip(int64_t count) const {
  check_count_argument("skip", count);
  return Dataset(slice_stage(stage_, count, kAllRows));
}

Dataset Dataset::concatenate(const Dataset& other) const {
  return Dataset(concatenate_stage(stage_, other.stage_));
}

Columns Dataset::head(int64_t count) const {
  check_count_argument("head", count);
  std::vector<RowRange> ranges;
  read_ranges(stage_->open(0, 0), count, ranges);
  return ranges.empty() ? Columns() : copy_rows(ranges);
}

Dataset Dataset::filter(
    std::function<at::Tensor(const Columns&)> predicate) const {
  TESSERA_CHECK_VALUE(
      predicate != nullptr,
      "[Dataset] filter() expected a predicate, but got an empty function.");
  const auto open = [input = stage_, predicate = std::move(predicate)](
                        int64_t epoch, int64_t first) {
    const auto pick = [&predicate, rows = input->open(epoch, 0)](
                          int64_t max_rows) -> std::optional<PickedRows> {
      // Reads more rows than the caller wants, because only few of them may be kept.
      constexpr int64_t kMinRows = 4096;
      std::optional<RowRange> range = rows(std::max(max_rows, kMinRows));
      if (!range) {
        return std::nullopt;
      }
      const RowRange owned = owned_range(take_rows(std::move(*range)));
      return PickedRows{owned, kept_rows(*owned.columns, predicate)};
    };
    return picked_rows(pick, first);
  };
  const auto size = [] { return std::nullopt; };
  return Dataset(make_stage({open, size, stage_->has_fixed_order}));
}

Dataset Dataset::map_with(detail::MapFunction map) const {
  TESSERA_CHECK_VALUE(
      map != nullptr,
      "[Dataset] map() expected a function, but got an empty one.");
  return Dataset(map_stage(stage_, map));
}

Dataset Dataset::cache(const detail::CacheOptions& options) const {
  TESSERA_CHECK_VALUE(
      options.max_bytes >= 1,
      "[Dataset] max_bytes of cache() must be >= 1, but got {}.",
      options.max_bytes);
  const std::shared_ptr<Cache> cache(new Cache{stage_, options.max_bytes});
  const auto open = [cache](int64_t, int64_t first) {
    return read_columns(cache->load(), first);
  };
  return Dataset(make_stage({open, stage_->size, /*has_fixed_order=*/true}));
}

Batches Dataset::batch(const detail::BatchOptions& options) const {
  TESSERA_CHECK_VALUE(
      options.size >= 1,
      "[Dataset] size of batch() must be >= 1, but got {}. Set it to the number of examples in a batch.",
      options.size);
  return Batches(batch_stage(stage_, options));
}

std::optional<int64_t> Dataset::size() const {
  return stage_->size();
}

std::unique_ptr<ExampleReader> Dataset::open(int64_t epoch, int64_t first)
    const {
  TESSERA_CHECK_VALUE(
      epoch >= 0 && first >= 0,
      "[Dataset] open() expected an epoch and a first example >= 0, but got {} and {}.",
      epoch,
      first);
  return std::make_unique<StageReader>(stage_, epoch, first);
}

}  // namespace tessera::data
