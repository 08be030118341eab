// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace tessera {

/// Counts the calls of an object's public members and refuses calls after shutdown(). It
/// also has the lock and the condition variable that these calls share.
class CallGate {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// `timeout`: the longest time that wait() waits.
  explicit CallGate(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  /// Counts as a running call of a public member while it lives.
  /// Errors:  c10::Error within an update, and after shutdown().
  class Call {
   public:
    explicit Call(CallGate& gate);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CallGate& gate_;
  };

  /// While an Update exists, its thread counts as the one that updates the tables. Calls
  /// that this thread makes meanwhile are refused.
  class Update {
   public:
    explicit Update(CallGate& gate) : gate_(gate) {
      gate_.updating_thread_ = std::this_thread::get_id();
    }
    ~Update() {
      gate_.updating_thread_ = std::thread::id();
    }
    Update(const Update&) = delete;
    Update& operator=(const Update&) = delete;

   private:
    CallGate& gate_;
  };

  [[nodiscard]] Lock lock() {
    return Lock(mutex_);
  }
  void notify_all() {
    changed_.notify_all();
  }

  /// Waits until is_done() returns true.
  /// Errors:  c10::Error after shutdown(); c10::Error with the text of problem() after the
  ///          timeout.
  void wait(
      Lock& lock,
      c10::function_ref<bool()> is_done,
      c10::function_ref<std::string()> problem);

  /// Errors:  c10::Error if this thread is within an update, which holds the lock.
  void check_not_updating() const;

  /// Makes all later calls raise, and those that wait.
  void shutdown();
  /// Calls shutdown() and waits until no call runs.
  void shutdown_and_wait();

  bool is_shut_down();

  /// Whether no call runs. Returns false, and does not wait, if the lock is taken. In a
  /// forked child, a call that another thread of the parent was running never ends.
  bool is_idle();

 private:
  void check_open() const;

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t calls_ = 0;
  bool is_shut_down_ = false;
  std::atomic<std::thread::id> updating_thread_ = std::thread::id();
};

}  // namespace tessera
