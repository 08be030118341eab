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

/// One collective of this rank, from its start until MPI has completed it.
struct MpiOperation {
  /// What a request is for.
  struct Transfer {
    const char* function;
    /// The other rank, or -1 for all ranks.
    int rank = -1;
  };
  /// A message that is expected.
  struct Receive {
    char* data;
    int num_bytes;
  };

  Collective collective = Collective::kBarrier;
  /// Counts the collectives of this process from 1, in the same way on all ranks.
  int64_t number = 0;
  /// How long wait() waits if it gets no timeout of its own.
  std::chrono::milliseconds timeout = {};
  std::vector<MPI_Request> requests = {};
  std::vector<MPI_Status> statuses = {};  // [requests]
  std::vector<Transfer> transfers = {};  // [requests]
  /// Messages that have not arrived yet, in the order in which each rank sends them.
  std::vector<std::deque<Receive>> expected = {};  // [world]
  int64_t num_expected = 0;
  MPI_Comm communicator = MPI_COMM_NULL;
  int tag = 0;
  /// The tensors that MPI reads and writes. They live until it is done.
  std::vector<at::Tensor> tensors = {};
  std::optional<std::chrono::steady_clock::time_point> waits_since = {};
  bool is_done = false;
  /// Why it has ended without a result.
  std::exception_ptr error = nullptr;
};

/// The ranks of one mpirun and the collectives in flight between them. A process has
/// one MpiWorld, and never destroys it, because MPI may still write into buffers in
/// flight after a failure.
///
/// Any thread may call it: one lock guards all calls of MPI.
class MpiWorld {
 public:
  /// The first call initialises MPI.
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
  /// The most bytes that one message carries, because MPI counts in int.
  int64_t max_piece() const {
    return max_piece_;
  }
  void set_max_piece_for_test(int64_t max_piece) {
    max_piece_ = max_piece;
  }

  /// Starts the next collective. `issue` calls add(), send() and receive() for it.
  /// Each kind of collective has a communicator of its own, so that two kinds never
  /// receive each other's messages.
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

  /// Makes progress; says whether the collective has ended, with a result or an error.
  bool test(MpiOperation& operation);
  /// Errors:  c10::DistBackendError, at each call after a failure.
  void wait(MpiOperation& operation, std::chrono::milliseconds timeout);
  bool is_done(const MpiOperation& operation) const;
  std::exception_ptr error_of(const MpiOperation& operation) const;

 private:
  using Clock = std::chrono::steady_clock;

  MpiWorld();
  void finalize();

  // The caller of each of these functions holds the lock.
  void progress(MpiOperation& operation);
  void take_messages(MpiOperation& operation);
  // The error in requests for which MPI_Testall returned `code`; empty: none.
  std::string find_problem(const MpiOperation& operation, int code) const;
  void remove(const MpiOperation& operation);
  void read_reports();
  // Aborts an incomplete collective if another rank exited or failed.
  void check_peer_errors(MpiOperation& operation);
  // Tells all ranks, collects their reports, and sets the error of this collective
  // and of all that follow.
  void abort(
      MpiOperation& operation,
      RankReport::Reason reason,
      const std::string& problem);
  // Makes progress with collectives whose Work has been destroyed.
  void progress_abandoned();

  mutable std::mutex mutex_;
  int rank_ = 0;
  int size_ = 1;
  int64_t max_tag_ = 0;
  int64_t max_piece_ = int64_t{1} << 30;
  std::array<MPI_Comm, kNumCollectives> communicators_ = {};
  FailureDetector failure_detector_;
  int64_t num_started_ = 0;
  std::vector<std::shared_ptr<MpiOperation>> in_flight_;
  Clock::time_point next_read_ = {};
  std::optional<Clock::time_point> peer_failed_since_;
  std::optional<std::string> first_error_;
};

}  // namespace tessera::distributed
