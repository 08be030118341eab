// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::data {

/// Runs tasks on threads, and returns their items in the order of the tasks. The number of
/// threads does not change the items. The sum of the sizes of the items that wait for the
/// caller is limited. The size of an Item is its member `size`, or 1.
template <class Item>
class OrderedTasks {
 public:
  /// Returns the next item of a task, or nullopt after the last one.
  using Task = std::function<std::optional<Item>()>;
  /// Returns the next task, or an empty function after the last task. Only one thread at
  /// a time calls this.
  using NextTask = std::function<Task()>;

  OrderedTasks(NextTask next_task, int64_t threads, int64_t max_size)
      : next_task_(std::move(next_task)), max_size_(max_size) {
    try {
      for (int64_t i = 0; i < threads; ++i) {
        threads_.emplace_back([this] { run(); });
      }
    } catch (...) {
      close();
      throw;
    }
  }
  ~OrderedTasks() {
    close();
  }

  /// The next item, or nullopt after the last one.
  /// Errors:  the error of a task, after all items before it. Each further call raises it
  ///          again.
  std::optional<Item> next() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] {
        return slots_.empty()
            ? is_ended_
            : !slots_.front()->items.empty() || slots_.front()->is_done;
      });
      if (slots_.empty()) {
        return std::nullopt;
      }
      Slot& slot = *slots_.front();
      if (!slot.items.empty()) {
        Item item = std::move(slot.items.front());
        slot.items.pop_front();
        waiting_size_ -= size_of(item);
        changed_.notify_all();
        return item;
      }
      if (slot.error != nullptr) {
        std::rethrow_exception(slot.error);
      }
      slots_.pop_front();
      changed_.notify_all();
    }
  }

 private:
  struct Slot {
    std::deque<Item> items;
    bool is_done = false;
    std::exception_ptr error;
  };

  static int64_t size_of(const Item& item) {
    if constexpr (requires { item.size; }) {
      return item.size;
    } else {
      return 1;
    }
  }

  void close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void run() {
    while (true) {
      std::shared_ptr<Slot> slot;
      Task task = begin_task(slot);
      if (!task) {
        return;
      }
      run_task(task, slot);
    }
  }

  // Waits until there is room for the items of a further task.
  Task begin_task(std::shared_ptr<Slot>& slot) {
    const std::lock_guard<std::mutex> source_lock(source_mutex_);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] {
        return is_closing_ || is_ended_ || slots_.empty() ||
            waiting_size_ < max_size_;
      });
      if (is_closing_ || is_ended_) {
        return nullptr;
      }
    }
    Task task;
    slot = std::make_shared<Slot>();
    try {
      task = next_task_();
    } catch (...) {
      slot->error = std::current_exception();
      slot->is_done = true;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (task || slot->is_done) {
      slots_.push_back(slot);
    }
    is_ended_ = !task;
    changed_.notify_all();
    return task;
  }

  void run_task(Task& task, const std::shared_ptr<Slot>& slot) {
    std::exception_ptr error;
    try {
      while (std::optional<Item> item = task()) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] {
          // The caller waits for the first task, so this task may always add one item.
          const bool is_expected =
              slots_.front() == slot && slot->items.empty();
          return is_closing_ || is_expected ||
              waiting_size_ + size_of(*item) <= max_size_;
        });
        if (is_closing_) {
          return;
        }
        waiting_size_ += size_of(*item);
        slot->items.push_back(std::move(*item));
        changed_.notify_all();
      }
    } catch (...) {
      error = std::current_exception();
    }
    task = nullptr;  // closes the files of the task
    const std::lock_guard<std::mutex> lock(mutex_);
    slot->error = error;
    slot->is_done = true;
    changed_.notify_all();
  }

  NextTask next_task_;
  int64_t max_size_;
  std::mutex source_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Slot>> slots_;  // in the order of the tasks
  int64_t waiting_size_ = 0;
  bool is_ended_ = false;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::data
