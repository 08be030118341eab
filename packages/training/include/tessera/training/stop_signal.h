// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera::training {

// snippet: tests/docs/reference_training_test.cpp StopSignal
/// While a StopSignal exists, SIGINT and SIGTERM do not end the process but are recorded.
/// A second signal ends the process, as it does by default. The destructor of the last
/// StopSignal restores the previous signal handlers, and raises the recorded signal again
/// if name() never returned it. A signal that the process ignores stays ignored. Any
/// thread may create a StopSignal. fit() uses one. In your own loop:
///
///   const StopSignal signal;
///   while (signal.name() == nullptr) {
///     step(next_batch());
///   }
///   save_weights(*model, "run");
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();

  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// "SIGINT", "SIGTERM", or nullptr if there was no signal.
  const char* name() const;
};

}  // namespace tessera::training
