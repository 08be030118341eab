// SPDX-License-Identifier: Apache-2.0
#include "src/engine/call_gate.h"

#include <algorithm>

#include "src/common/check.h"

namespace tessera {

CallGate::Call::Call(CallGate& gate) : gate_(gate) {
  gate_.check_not_updating();
  const Lock lock(gate_.mutex_);
  gate_.check_open();
  ++gate_.calls_;
}

CallGate::Call::~Call() {
  // Notifies under the lock, because the gate may be destroyed once it is released.
  const Lock lock(gate_.mutex_);
  --gate_.calls_;
  gate_.changed_.notify_all();
}

void CallGate::wait(
    Lock& lock,
    c10::function_ref<bool()> is_done,
    c10::function_ref<std::string()> problem) {
  constexpr auto kMaxTimeout = std::chrono::hours(24 * 365);
  const auto timeout =
      std::min<std::chrono::milliseconds>(timeout_, kMaxTimeout);
  const bool is_done_in_time = changed_.wait_for(
      lock, timeout, [&] { return is_shut_down_ || is_done(); });
  check_open();
  TESSERA_CHECK(
      is_done_in_time,
      "{} Waited for {} ms (EmbeddingEngineOptions::timeout).",
      problem(),
      timeout_.count());
}

void CallGate::check_not_updating() const {
  TESSERA_CHECK(
      updating_thread_ != std::this_thread::get_id(),
      "[EmbeddingEngine] expected no call of the engine within its own update or checkpoint, but a learning rate, a custom rule or CheckpointOptions::extra has made one. Call the engine before or after.");
}

void CallGate::check_open() const {
  TESSERA_CHECK(
      !is_shut_down_,
      "[EmbeddingEngine] expected a running engine, but it has been shut down. Construct another one.");
}

void CallGate::shutdown() {
  {
    const Lock lock(mutex_);
    is_shut_down_ = true;
  }
  changed_.notify_all();
}

void CallGate::shutdown_and_wait() {
  shutdown();
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return calls_ == 0; });
}

bool CallGate::is_shut_down() {
  const Lock lock(mutex_);
  return is_shut_down_;
}

bool CallGate::is_idle() {
  const Lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && calls_ == 0;
}

}  // namespace tessera
