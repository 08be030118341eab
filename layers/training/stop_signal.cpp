// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/stop_signal.h>

#include <signal.h>

#include <array>
#include <atomic>
#include <mutex>

namespace tessera::training {

namespace {

constexpr std::array kNumbers = {SIGINT, SIGTERM};

std::atomic<int> noted{0};
std::atomic<bool> is_reported{false};
static_assert(std::atomic<int>::is_always_lock_free);

// A signal handler may only call functions that POSIX lists as async-signal-safe.
extern "C" void note_signal(int number) {
  int none = 0;
  if (!noted.compare_exchange_strong(none, number)) {
    ::signal(number, SIG_DFL);
    ::raise(number);  // delivered when this handler returns
  }
}

std::mutex mutex;
int users = 0;
std::array<struct sigaction, kNumbers.size()> before;
std::array<bool, kNumbers.size()> is_ours;

void install() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;  // a read of the batch source continues
  ::sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kNumbers.size(); ++i) {
    ::sigaction(kNumbers[i], nullptr, &before[i]);
    is_ours[i] = before[i].sa_handler != SIG_IGN;
    if (is_ours[i]) {
      ::sigaction(kNumbers[i], &action, nullptr);
    }
  }
}

// Restores the previous handlers. Returns the signal that name() has not returned; 0:
// none.
int restore() {
  for (size_t i = 0; i < kNumbers.size(); ++i) {
    struct sigaction now {};
    ::sigaction(kNumbers[i], nullptr, &now);
    // A handler that was installed in the meantime stays.
    if (is_ours[i] && now.sa_handler == note_signal) {
      ::sigaction(kNumbers[i], &before[i], nullptr);
    }
  }
  const int number = noted.exchange(0);
  return is_reported.exchange(false) ? 0 : number;
}

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(mutex);
  if (users++ == 0) {
    install();
  }
}

StopSignal::~StopSignal() {
  int unheard = 0;
  {
    const std::lock_guard lock(mutex);
    if (--users == 0) {
      unheard = restore();
    }
  }
  if (unheard != 0) {
    ::raise(unheard);  // the previous handler gets it
  }
}

const char* StopSignal::name() const {
  const int number = noted.load();
  if (number != 0) {
    is_reported = true;
  }
  switch (number) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    default:
      return nullptr;
  }
}

}  // namespace tessera::training
