// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/stop_signal.h>

#include <signal.h>

#include <array>
#include <atomic>
#include <mutex>

namespace tessera::training {

namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM};

std::atomic<int> received_signal{0};
std::atomic<bool> is_reported{false};
static_assert(std::atomic<int>::is_always_lock_free);

// A signal handler may only call functions that POSIX lists as async-signal-safe.
extern "C" void handle_signal(int number) {
  int none = 0;
  if (!received_signal.compare_exchange_strong(none, number)) {
    ::signal(number, SIG_DFL);
    ::raise(number);  // delivered when this handler returns
  }
}

std::mutex mutex;
int num_users = 0;
std::array<struct sigaction, kSignals.size()> before;
std::array<bool, kSignals.size()> is_installed;

void install() {
  struct sigaction action {};
  action.sa_handler = handle_signal;
  action.sa_flags = SA_RESTART;  // a read of the batch source continues
  ::sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before[i]);
    is_installed[i] = before[i].sa_handler != SIG_IGN;
    if (is_installed[i]) {
      ::sigaction(kSignals[i], &action, nullptr);
    }
  }
}

// Restores the previous handlers. Returns the received signal, or 0 if there is none or
// if StopSignal::name() has returned it.
int restore() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction now {};
    ::sigaction(kSignals[i], nullptr, &now);
    // A handler that was installed in the meantime stays.
    if (is_installed[i] && now.sa_handler == handle_signal) {
      ::sigaction(kSignals[i], &before[i], nullptr);
    }
  }
  const int number = received_signal.exchange(0);
  return is_reported.exchange(false) ? 0 : number;
}

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(mutex);
  if (num_users++ == 0) {
    install();
  }
}

StopSignal::~StopSignal() {
  int unhandled = 0;
  {
    const std::lock_guard lock(mutex);
    if (--num_users == 0) {
      unhandled = restore();
    }
  }
  if (unhandled != 0) {
    ::raise(unhandled);  // the previous handler gets it
  }
}

const char* StopSignal::name() const {
  const int number = received_signal.load();
  if (number != 0) {
    is_reported = true;
  }
  return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : nullptr;
}

}  // namespace tessera::training
