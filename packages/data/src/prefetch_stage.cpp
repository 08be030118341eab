// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/batch_stage.h"
#include "packages/data/src/ordered_tasks.h"
#include "src/common/check.h"

#include <c10/core/GradMode.h>
#include <unistd.h>

#include <utility>

namespace tessera::data {

namespace {

struct ReadBatch {
  Columns columns = {};
  int64_t size = 1;  // in the queue
};

using BatchTasks = OrderedTasks<ReadBatch>;

// The only task of a queue, which reads all batches on one thread.
BatchTasks::Task reading_task(
    const BatchStage& stage,
    const BatchPosition& begin) {
  return
      [&stage,
       begin,
       reader = BatchStageReader(),
       has_gradients =
           c10::GradMode::is_enabled()]() mutable -> std::optional<ReadBatch> {
        // A function of map() runs in the gradient mode of the thread that made this object.
        const c10::AutoGradMode mode(has_gradients);
        if (reader == nullptr) {
          reader = stage.open(begin.epoch, begin.batch);
        }
        std::optional<Columns> batch = reader();
        if (!batch) {
          return std::nullopt;
        }
        return ReadBatch{.columns = std::move(*batch)};
      };
}

class PrefetchStage : public BatchStage {
 public:
  PrefetchStage(BatchStagePtr input, int64_t count)
      : input_(std::move(input)), count_(count) {}

  BatchStageReader open(int64_t epoch, int64_t first) const override {
    const pid_t process = ::getpid();
    const std::shared_ptr<BatchTasks> tasks(
        new BatchTasks(
            [task = reading_task(
                 *input_, {.epoch = epoch, .batch = first})]() mutable {
              return std::exchange(task, nullptr);
            },
            /*threads=*/1,
            count_),
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
      std::optional<ReadBatch> batch = tasks->next();
      return batch ? std::optional(std::move(batch->columns)) : std::nullopt;
    };
  }

  std::optional<int64_t> size() const override {
    return input_->size();
  }
  int64_t batch_size() const override {
    return input_->batch_size();
  }

 private:
  BatchStagePtr input_;
  int64_t count_;
};

}  // namespace

BatchStagePtr prefetch_stage(BatchStagePtr input, int64_t count) {
  return std::make_shared<PrefetchStage>(std::move(input), count);
}

}  // namespace tessera::data
