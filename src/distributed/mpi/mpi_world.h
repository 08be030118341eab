// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/distributed/mpi/failure_detector.h"

namespace tessera::distributed {

/// One collective of this rank, from its start until MPI is done with it.
struct MpiOperation {
  /// What a request is for.
  struct Transfer {
    const char* function;
    /// The other side, or -1 for all.
    int rank = -1;
  };
  /// A message to come.
  struct Receive {
    char* data;
    int num_bytes;
  };

  Collective collective = Collective::kBarrier;
  /// Counts the collectives of this process from 1, alike on all ranks.
  int64_t number = 0;
  /// How long wait() waits, unless told otherwise.
  std::chrono::milliseconds timeout = {};
  std::vector<MPI_Request> requests = {};
  std::vector<MPI_Status> statuses = {};  // [requests]
  std::vector<Transfer> transfers = {};  // [requests]
  /// Messages that have not come yet, in the order in which each rank sends them.
  std::vector<std::deque<Receive>> expected = {};  // [world]
  int64_t num_expected = 0;
  MPI_Comm communicator = MPI_COMM_NULL;
  int tag = 0;
  /// What MPI reads and writes: kept until it is done.
  std::vector<at::Tensor> tensors = {};
  std::optional<std::chrono::steady_clock::time_point> waits_since = {};
  bool is_done = false;
  /// Why it is done without a result.
  std::exception_ptr error = nullptr;
};

/// The ranks of one mpirun and what is in flight between them. There is one in a
/// process, and it is never destroyed: after a failure MPI may write into buffers
/// in flight for ever.
///
/// Any thread may call; one lock orders all calls of MPI.
class MpiWorld {
 public:
  /// Initialises MPI at the first call.
  /// Errors:  c10::DistBackendError.
  static MpiWorld& get();

  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  /// "[MpiBackend] rank 0 of 4:".
  std::string where() const;
  int64_t num_started() const;
  /// What one message carries, in bytes: MPI counts in int. A multiple of 8.
  int64_t max_piece() const {
    return max_piece_;
  }
  void set_max_piece_for_test(int64_t max_piece) {
    max_piece_ = max_piece;
  }

  /// The next collective. `issue` calls add(), send() and receive() on its
  /// communicator, which is for this kind of collective alone: so two kinds never
  /// take each other's messages.
  /// Errors:  c10::DistBackendError, also after any earlier failure.
  std::shared_ptr<MpiOperation> start(
      Collective collective,
      std::chrono::milliseconds timeout,
      std::vector<at::Tensor> tensors,
      const std::function<void(MpiOperation&)>& issue);
  void add(
      MpiOperation& operation,
      MpiOperation::Transfer transfer,
      const std::function<int(MPI_Request*)>& call);
  void send(
      MpiOperation& operation,
      const char* data,
      int64_t num_bytes,
      int to);
  void receive(MpiOperation& operation, char* data, int64_t num_bytes, int from)
      const;

  /// Whether MPI is done with it, with a result or an error.
  bool test(MpiOperation& operation);
  /// Errors:  c10::DistBackendError, again at each call.
  void wait(MpiOperation& operation, std::chrono::milliseconds timeout);
  bool is_done(const MpiOperation& operation) const;
  std::exception_ptr error_of(const MpiOperation& operation) const;

 private:
  using Clock = std::chrono::steady_clock;

  MpiWorld();
  void leave();

  // All below: with the lock held.
  void progress(MpiOperation& operation);
  void take_messages(MpiOperation& operation);
  // What went wrong in requests that MPI_Testall ended with `code`, or nothing.
  std::string find_problem(const MpiOperation& operation, int code) const;
  void forget(const MpiOperation& operation);
  void read_reports();
  // What reports mean for a collective that has not ended yet.
  void check_peer_errors(MpiOperation& operation);
  // Tells all, hears who is there, and ends this and all that follows.
  void fail(
      MpiOperation& operation,
      RankReport::Reason reason,
      const std::string& problem);
  void forget_abandoned();

  mutable std::mutex mutex_;
  int rank_ = 0;
  int size_ = 1;
  int64_t max_tag_ = 0;
  int64_t max_piece_ = int64_t{1} << 30;
  std::array<MPI_Comm, kNumCollectives> communicators_ = {};
  FailureDetector failure_detector_;
  int64_t num_started_ = 0;
  std::vector<std::shared_ptr<MpiOperation>> in_flight_;
  Clock::time_point next_look_ = {};
  std::optional<Clock::time_point> failed_since_;
  std::optional<std::string> first_error_;
};

}  // namespace tessera::distributed
