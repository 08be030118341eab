// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::distributed {

enum class Collective : int64_t {
  kAlltoall,
  kAllgather,
  kAllreduce,
  kBroadcast,
  kBarrier
};
inline constexpr size_t kNumCollectives = 5;

/// "alltoall number 17".
std::string name_of(Collective collective, int64_t number);

/// What a rank says of itself.
struct RankReport {
  enum Reason : int64_t {
    /// It has waited until its time-out.
    kTimeout,
    /// MPI reported an error to it, or sizes do not agree.
    kError,
    /// Another rank has said one of these.
    kAlarmed,
    /// It is at the end of its process, after `number` collectives.
    kLeaves
  };
  int64_t reason = kTimeout;
  /// Where it waits.
  Collective collective = Collective::kBarrier;
  int64_t number = 0;
  int64_t waited_milliseconds = 0;
};

/// Who is there when a collective does not end: each rank that gives up says so
/// to all others, each that hears it answers with its own report and gives up,
/// too, so that the silent ones are those that did not come.
///
/// Not safe for several threads at once.
class FailureDetector {
 public:
  FailureDetector() = default;
  /// Opens the connections between all, so that none has to be made when a rank
  /// is already missing.
  /// Errors:  none; `control` is for this object alone.
  FailureDetector(int rank, int size, MPI_Comm control);

  /// Tells all others, and never waits for one.
  void announce(const RankReport& report);
  /// Takes what has arrived.
  void read();
  /// Reads until all others have reported, or `patience` is over.
  void collect(std::chrono::milliseconds patience);

  /// Whether a rank has given up.
  bool has_failed() const {
    return first_failure_.has_value();
  }
  /// Whether it did so in collective `number` or before.
  bool has_failed_by(int64_t number) const {
    return has_failed() && *first_failure_ <= number;
  }
  /// A rank that left without issuing collective `number`.
  std::optional<int> rank_gone_before(int64_t number) const;
  /// Whether all have left, and what this rank announced is sent.
  bool all_have_left();

  /// The end of an error text: who gave up first, who did not come, waits elsewhere, or came last,
  /// seen by a rank that waits in `own`, and what to do.
  std::string describe(const RankReport& own) const;

 private:
  bool is_sent();
  std::string describe_failure() const;

  int rank_ = 0;
  int size_ = 1;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::vector<std::optional<RankReport>> reports_;  // [world]
  std::optional<int64_t> first_failure_;  // A collective's number.
  // Buffers and requests of announce(), which has two calls at most.
  std::vector<RankReport> announced_;
  std::vector<MPI_Request> requests_;
};

}  // namespace tessera::distributed
