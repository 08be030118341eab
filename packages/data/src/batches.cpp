// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/batches.h>

#include "packages/data/src/ordered_tasks.h"
#include "packages/data/src/row_stage.h"
#include "src/common/check.h"

#include <c10/core/GradMode.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <vector>

namespace tessera::data {

// Reads the batches of one epoch. Each call returns the next batch. After the last batch,
// every call returns nullopt.
using BatchStageReader = std::function<std::optional<Columns>()>;

// One step of Batches. Several threads may use it at the same time.
class BatchStage {
 public:
  // Returns a reader from the batch `first` >= 0 of the epoch. The stage must outlive it.
  std::function<BatchStageReader(int64_t epoch, int64_t first)> open;
  std::function<std::optional<int64_t>()> size;
  // The number of examples in each batch but the last, before any map().
  int64_t batch_size;
};

using BatchStagePtr = std::shared_ptr<const BatchStage>;
using BatchTasks = OrderedTasks<Columns>;

BatchStagePtr batch_stage(
    RowStagePtr rows,
    const detail::BatchOptions& options) {
  const auto size = [rows, options] {
    std::optional<int64_t> batches = rows->size();
    if (batches) {
      const bool has_part = !options.drop_last && *batches % options.size != 0;
      *batches = *batches / options.size + (has_part ? 1 : 0);
    }
    return batches;
  };
  const auto open = [rows, options](int64_t epoch, int64_t first) {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    const int64_t first_row =
        first > kMax / options.size ? kMax : first * options.size;
    return [options,
            rows = rows->open(epoch, first_row)]() -> std::optional<Columns> {
      std::vector<RowRange> ranges;
      const int64_t filled = read_ranges(rows, options.size, ranges);
      if (filled == 0 || (options.drop_last && filled < options.size)) {
        return std::nullopt;
      }
      return ranges.size() == 1 ? take_rows(std::move(ranges.front()))
                                : copy_rows(ranges);
    };
  };
  return std::make_shared<BatchStage>(BatchStage{open, size, options.size});
}

struct BatchReader::State {
  std::optional<Columns> read() {
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
    if (has_ended) {
      return std::nullopt;
    }
    try {
      if (reader == nullptr) {
        reader = stage->open(position.epoch, position.batch);
      }
      std::optional<Columns> batch = reader();
      has_ended = !batch;
      position.batch += batch ? 1 : 0;
      return batch;
    } catch (...) {
      error = std::current_exception();
      throw;
    }
  }

  // Continues at another batch, which the next read() opens.
  void move_to(int64_t batch) {
    reader = nullptr;
    has_ended = false;
    position.batch = batch;
  }

  // Skips `count` batches of an epoch of unknown size, and returns how many of them
  // exist. If the last of them exists, makes only this batch. Otherwise, makes all of
  // them to count them.
  int64_t skip_unknown(int64_t count) {
    const int64_t begin = position.batch;
    if (count > std::numeric_limits<int64_t>::max() - begin) {
      count = std::numeric_limits<int64_t>::max() - begin;
    }
    move_to(begin + count - 1);
    if (read()) {
      return count;
    }
    move_to(begin);
    while (position.batch < begin + count && read()) {
    }
    return position.batch - begin;
  }

  BatchStagePtr stage;
  BatchPosition position;
  BatchStageReader reader;  // unset until read() opens it
  std::exception_ptr error;
  bool has_ended = false;
};

BatchReader::BatchReader(std::shared_ptr<const BatchStage> stage, int64_t epoch)
    : state_(std::make_unique<State>()) {
  state_->stage = std::move(stage);
  state_->position.epoch = epoch;
}

BatchReader::BatchReader(BatchReader&&) noexcept = default;
BatchReader& BatchReader::operator=(BatchReader&&) noexcept = default;
BatchReader::~BatchReader() = default;

BatchReader::State& BatchReader::state() const {
  TESSERA_CHECK(
      state_ != nullptr,
      "[BatchReader] expected a reader, but got one that was moved from. Use the reader that it was moved to.");
  return *state_;
}

std::optional<Columns> BatchReader::next() {
  return state().read();
}

int64_t BatchReader::skip(int64_t count) {
  State& state = this->state();
  TESSERA_CHECK_VALUE(
      count >= 0,
      "[BatchReader] skip() expected a number of batches >= 0, but got {}. A reader can't go back; open another one.",
      count);
  if (state.error != nullptr) {
    std::rethrow_exception(state.error);
  }
  if (count == 0 || state.has_ended) {
    return 0;
  }
  const std::optional<int64_t> size = state.stage->size();
  if (!size) {
    return state.skip_unknown(count);
  }
  const int64_t left = std::max<int64_t>(*size - state.position.batch, 0);
  const int64_t skipped = std::min(count, left);
  state.move_to(state.position.batch + skipped);
  return skipped;
}

std::optional<int64_t> BatchReader::size() const {
  return state().stage->size();
}

BatchPosition BatchReader::position() const {
  return state().position;
}

Batches::Batches(std::shared_ptr<const BatchStage> stage)
    : stage_(std::move(stage)) {}

Batches Batches::map_with(detail::MapFunction map) const {
  TESSERA_CHECK_VALUE(
      map != nullptr,
      "[Batches] map() expected a function, but got an empty one.");
  const auto open = [input = stage_, map = std::move(map)](
                        int64_t epoch, int64_t first) {
    return [&map,
            epoch,
            batch = first,
            batch_size = input->batch_size,
            batches =
                input->open(epoch, first)]() mutable -> std::optional<Columns> {
      std::optional<Columns> columns = batches();
      if (!columns) {
        return std::nullopt;
      }
      const MapContext context{
          .epoch = epoch, .first_row = batch++ * batch_size, .is_batch = true};
      return map(std::move(*columns), context);
    };
  };
  return Batches(std::make_shared<BatchStage>(
      BatchStage{open, stage_->size, stage_->batch_size}));
}

Batches Batches::prefetch(int64_t count) const {
  constexpr int64_t kMaxCount = 65536;
  TESSERA_CHECK_VALUE(
      count >= 1 && count <= kMaxCount,
      "[Batches] prefetch() expected a number of batches in [1, {}], but got {}. Two are usually enough.",
      kMaxCount,
      count);
  const auto open = [input = stage_, count](
                        int64_t epoch, int64_t first) -> BatchStageReader {
    // Functions of map() run in the gradient mode of the thread that opens the reader.
    BatchTasks::Task reading_task =
        [input,
         epoch,
         first,
         reader = BatchStageReader(),
         has_gradients = c10::GradMode::is_enabled()]() mutable {
          const c10::AutoGradMode mode(has_gradients);
          if (reader == nullptr) {
            reader = input->open(epoch, first);
          }
          return reader();
        };
    const pid_t process = ::getpid();
    const std::shared_ptr<BatchTasks> tasks(
        new BatchTasks(
            // There is only one task, which reads all batches.
            [task = std::move(reading_task)]() mutable {
              return std::exchange(task, nullptr);
            },
            /*threads=*/1,
            count),
        [process](const BatchTasks* own) {
          // The thread does not exist in a forked child. Joining it would wait forever.
          if (process == ::getpid()) {
            delete own;
          }
        });
    return [process, tasks]() -> std::optional<Columns> {
      TESSERA_CHECK(
          process == ::getpid(),
          "[Batches] expected a call in process {}, whose thread reads the batches, but got one in its forked child {}. Open a reader in the child.",
          process,
          ::getpid());
      return tasks->next();
    };
  };
  return Batches(std::make_shared<BatchStage>(
      BatchStage{open, stage_->size, stage_->batch_size}));
}

std::optional<int64_t> Batches::size() const {
  return stage_->size();
}

BatchReader Batches::operator()(int64_t epoch) const {
  TESSERA_CHECK_VALUE(
      epoch >= 0, "[Batches] expected an epoch >= 0, but got {}.", epoch);
  return BatchReader(stage_, epoch);
}

BatchReader Batches::resume(const BatchPosition& position) const {
  TESSERA_CHECK_VALUE(
      position.batch >= 0,
      "[Batches] resume() expected a batch >= 0, but got {}. Pass what BatchReader::position() returned.",
      position.batch);
  BatchReader reader = (*this)(position.epoch);
  const int64_t found = reader.skip(position.batch);
  TESSERA_CHECK_VALUE(
      found == position.batch,
      "[Batches] resume() expected to skip {} batches, but epoch {} has only {}. Resume with the same data.",
      position.batch,
      position.epoch,
      found);
  return reader;
}

}  // namespace tessera::data
