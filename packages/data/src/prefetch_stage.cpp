// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/batch_stage.h"
#include "src/common/check.h"

#include <c10/core/GradMode.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace tessera::data {

namespace {

// A thread that reads batches into a queue of limited length.
class BatchThread {
 public:
  BatchThread(const BatchStage& stage, BatchPosition begin, size_t max_batches)
      : stage_(stage),
        begin_(begin),
        max_batches_(max_batches),
        has_gradients_(c10::GradMode::is_enabled()),
        thread_([this] { run(); }) {}

  ~BatchThread() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  BatchThread(const BatchThread&) = delete;
  BatchThread& operator=(const BatchThread&) = delete;

  std::optional<Columns> next() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return has_ended_ || !batches_.empty(); });
    if (!batches_.empty()) {
      Columns batch = std::move(batches_.front());
      batches_.pop_front();
      lock.unlock();
      changed_.notify_all();
      return batch;
    }
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
    return std::nullopt;
  }

 private:
  void run() {
    // A function of map() runs in the gradient mode of the thread that made this object.
    const c10::AutoGradMode mode(has_gradients_);
    std::exception_ptr error;
    try {
      const auto reader = stage_.open(begin_.epoch, begin_.batch);
      while (std::optional<Columns> batch = reader()) {
        if (!push(std::move(*batch))) {
          return;
        }
      }
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      error_ = std::move(error);
      has_ended_ = true;
    }
    changed_.notify_all();
  }

  // Returns false if the queue is closing.
  bool push(Columns batch) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(
        lock, [&] { return is_closing_ || batches_.size() < max_batches_; });
    if (is_closing_) {
      return false;
    }
    batches_.push_back(std::move(batch));
    lock.unlock();
    changed_.notify_all();
    return true;
  }

  const BatchStage& stage_;
  BatchPosition begin_;
  size_t max_batches_;
  bool has_gradients_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Columns> batches_;
  std::exception_ptr error_;
  bool has_ended_ = false;
  bool is_closing_ = false;
  std::thread thread_;  // the last member, because it uses the others
};

class PrefetchStage : public BatchStage {
 public:
  PrefetchStage(BatchStagePtr input, int64_t count)
      : input_(std::move(input)), count_(count) {}

  BatchStageReader open(int64_t epoch, int64_t first) const override {
    const pid_t process = ::getpid();
    const std::shared_ptr<BatchThread> thread(
        new BatchThread(
            *input_,
            {.epoch = epoch, .batch = first},
            static_cast<size_t>(count_)),
        [process](const BatchThread* own) {
          // The thread does not exist in a forked child. Joining it would wait forever.
          if (process == ::getpid()) {
            delete own;
          }
        });
    return [process, thread] {
      TESSERA_CHECK(
          process == ::getpid(),
          "[Batches] expected a call in process {}, whose thread reads the batches, but got one in its forked child {}. Open a reader in the child.",
          process,
          ::getpid());
      return thread->next();
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
