// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera::training {

/// While one lives, SIGINT and SIGTERM are noted; a second one ends the process
/// by default. The last one that goes restores what stood before, and raises the
/// signal again if name() never told of it. A signal that was ignored stays so. Any
/// thread. fit() has one; for a loop of one's own:
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

  /// "SIGINT", "SIGTERM", or nullptr when none came.
  const char* name() const;
};

}  // namespace tessera::training
