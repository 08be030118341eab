// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::distributed {

enum class Collective : int64_t { kAlltoall, kBarrier };
inline constexpr size_t kNumCollectives = 2;

/// "alltoall number 17".
std::string name_of(Collective collective, int64_t number);

/// What a rank tells the others about itself.
struct RankReport {
  enum Reason : int64_t {
    /// It has waited until its timeout.
    kTimeout,
    /// MPI returned an error to it, or sizes do not agree.
    kError,
    /// Another rank has reported one of these.
    kPeerFailed,
    /// The rank's process ends. It has completed `number` collectives.
    kExits
  };
  int64_t reason = kTimeout;
  /// The collective in which it waits.
  Collective collective = Collective::kBarrier;
  int64_t number = 0;
  int64_t waited_milliseconds = 0;
};

/// Finds the ranks that are missing when a collective does not complete. A rank that
/// aborts reports that to all others. Each rank that hears of it answers with its own
/// report and aborts, too. So the silent ranks are those that did not arrive.
///
/// Must not be used by several threads at the same time.
class FailureDetector {
 public:
  FailureDetector() = default;
  /// Shakes hands with all other ranks, so that no connection has to be opened when
  /// a rank is already missing. `control` is for this object alone.
  FailureDetector(int rank, int size, MPI_Comm control);

  /// Sends a report to all others without waiting for them.
  void announce(const RankReport& report);
  /// Receives the reports that have arrived.
  void read();
  /// Reads until all others have reported or `timeout` is over.
  void collect(std::chrono::milliseconds timeout);

  /// Whether a rank has aborted.
  bool has_failed() const {
    return first_failure_.has_value();
  }
  /// Whether a rank has aborted in collective `number` or before.
  bool has_failed_by(int64_t number) const {
    return has_failed() && *first_failure_ <= number;
  }
  /// A rank that has exited without starting collective `number`.
  std::optional<int> rank_exited_before(int64_t number) const;
  /// Whether all others have exited and have been sent this rank's reports.
  bool all_have_exited();

  /// The end of an error message for a rank that waits in `own`: who aborted first,
  /// who did not arrive, waits elsewhere or arrived last, and what to do.
  std::string describe(const RankReport& own) const;

 private:
  struct Findings;

  bool all_sent();
  Findings compare(const RankReport& own) const;
  std::string describe_first_failure() const;

  int rank_ = 0;
  int size_ = 1;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::vector<std::optional<RankReport>> reports_;  // [world]
  std::optional<int64_t> first_failure_;  // the number of a collective
  // Buffers and requests of announce(), which is called at most twice.
  std::vector<RankReport> announced_;
  std::vector<MPI_Request> requests_;
};

}  // namespace tessera::distributed
