// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/mpi/mpi_world.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

namespace tessera::distributed {

namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long a rank that aborts waits for the others' reports.
constexpr milliseconds kGracePeriod{2000};
// After a failure, a rank may complete an earlier collective within the grace period
// divided by this number.
constexpr int kGraceDivisor = 8;
constexpr milliseconds kReadInterval{1};

// Waits between two polls, so that a waiting rank leaves its core to ranks that
// compute.
class Backoff {
 public:
  void operator()() {
    if (++num_polls_ < kNumSpins) {
      return;
    }
    if (Clock::now() - since_ < kYieldTime) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(sleep_ * 2, kMaxSleep);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kNumSpins = 20;
  // Longer than a short sleep with Linux's 50 us of timer slack. Otherwise two ranks
  // with small messages wait for each other's sleep (120 us per message, not 4).
  static constexpr microseconds kYieldTime{150};
  static constexpr microseconds kMaxSleep{50};

  Clock::time_point since_ = Clock::now();
  int num_polls_ = 0;
  microseconds sleep_{1};
};

milliseconds grace_period_of(const MpiOperation& operation) {
  return std::min(kGracePeriod, operation.timeout);
}

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return std::string(text.data(), length);
}

// Checks a call of MPI's setup, where no rank is known yet.
void check_setup(int code, const char* function) {
  if (code != MPI_SUCCESS) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str(
            "[MpiBackend] ",
            function,
            " failed: ",
            text_of(code),
            ". Check that the program was started by the mpirun of the MPI that"
            " it was built with."));
  }
}

MPI_Comm duplicate_world() {
  MPI_Comm communicator = MPI_COMM_NULL;
  check_setup(MPI_Comm_dup(MPI_COMM_WORLD, &communicator), "MPI_Comm_dup");
  check_setup(
      MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN),
      "MPI_Comm_set_errhandler");
  return communicator;
}

std::exception_ptr make_error(const std::string& message) {
  return std::make_exception_ptr(c10::DistBackendError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message));
}

}  // namespace

MpiWorld& MpiWorld::get() {
  static auto* const world = new MpiWorld;
  return *world;
}

MpiWorld::MpiWorld() {
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized != 0) {
    C10_THROW_ERROR(
        DistBackendError,
        "[MpiBackend] expected MPI to run, but MPI_Finalize was called."
        " Create the backend before that call.");
  }
  int is_initialized = 0;
  int threads = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_initialized);
  if (is_initialized != 0) {
    check_setup(MPI_Query_thread(&threads), "MPI_Query_thread");
  } else {
    check_setup(
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads),
        "MPI_Init_thread");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  }
  if (threads < MPI_THREAD_SERIALIZED) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str(
            "[MpiBackend] expected MPI with MPI_THREAD_SERIALIZED (",
            MPI_THREAD_SERIALIZED,
            ") or more, but its thread level is ",
            threads,
            ". Call MPI_Init_thread with MPI_THREAD_MULTIPLE, or let the backend"
            " initialise MPI."));
  }
  check_setup(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_setup(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  for (MPI_Comm& communicator : communicators_) {
    communicator = duplicate_world();
  }
  int* max_tag = nullptr;
  int has_max_tag = 0;
  check_setup(
      MPI_Comm_get_attr(communicators_[0], MPI_TAG_UB, &max_tag, &has_max_tag),
      "MPI_Comm_get_attr");
  max_tag_ =
      has_max_tag != 0 ? *max_tag : 32767;  // the least that MPI guarantees
  failure_detector_ = FailureDetector(rank_, size_, duplicate_world());

  if (is_initialized == 0) {
    // A child of fork() must not finalise MPI.
    static const pid_t process = ::getpid();
    std::atexit([] {
      if (::getpid() == process) {
        get().finalize();
      }
    });
  }
}

std::string MpiWorld::where() const {
  return c10::str("[MpiBackend] rank ", rank_, " of ", size_, ":");
}

int64_t MpiWorld::num_started() const {
  const std::lock_guard lock(mutex_);
  return num_started_;
}

std::shared_ptr<MpiOperation> MpiWorld::start(
    Collective collective,
    milliseconds timeout,
    std::vector<at::Tensor> tensors,
    const std::function<void(MpiOperation&)>& issue) {
  const std::lock_guard lock(mutex_);
  progress_abandoned();
  if (first_error_) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str(
            where(),
            " no collective can start, because an earlier one failed: ",
            *first_error_));
  }
  auto operation = std::make_shared<MpiOperation>();
  operation->collective = collective;
  operation->number = ++num_started_;
  operation->timeout = timeout;
  operation->tensors = std::move(tensors);
  operation->expected.resize(size_);
  operation->communicator = communicators_[static_cast<size_t>(collective)];
  operation->tag = static_cast<int>(num_started_ % (max_tag_ + 1));
  in_flight_.push_back(operation);
  issue(*operation);
  if (operation->error) {
    std::rethrow_exception(operation->error);
  }
  return operation;
}

void MpiWorld::add(
    MpiOperation& operation,
    MpiOperation::Transfer transfer,
    const std::function<int(MPI_Request*)>& call) {
  if (operation.is_done) {
    return;  // It has failed.
  }
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = call(&request);
  if (code == MPI_SUCCESS) {
    operation.requests.push_back(request);
    operation.transfers.push_back(transfer);
  } else {
    abort(
        operation,
        RankReport::kError,
        c10::str("failed: ", transfer.function, " says: ", text_of(code)));
  }
}

void MpiWorld::send(
    MpiOperation& operation,
    const char* data,
    int64_t num_bytes,
    int to) {
  // An empty message is sent, too, so that each rank notices differing sizes.
  do {
    const int piece = static_cast<int>(std::min(num_bytes, max_piece_));
    add(operation, {.function = "MPI_Isend", .rank = to}, [&](auto* request) {
      return MPI_Isend(
          data,
          piece,
          MPI_BYTE,
          to,
          operation.tag,
          operation.communicator,
          request);
    });
    data += piece;
    num_bytes -= piece;
  } while (num_bytes > 0);
}

void MpiWorld::receive(
    MpiOperation& operation,
    char* data,
    int64_t num_bytes,
    int from) const {
  do {
    const int piece = static_cast<int>(std::min(num_bytes, max_piece_));
    operation.expected[from].push_back({data, piece});
    ++operation.num_expected;
    data += piece;
    num_bytes -= piece;
  } while (num_bytes > 0);
}

// A receive is given to MPI when its message has arrived and has the right size,
// because OpenMPI 4.1 writes a longer message past the end of the buffer.
void MpiWorld::take_messages(MpiOperation& operation) {
  while (operation.num_expected > 0 && !operation.is_done) {
    int has_arrived = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int code = MPI_Improbe(
        MPI_ANY_SOURCE,
        operation.tag,
        operation.communicator,
        &has_arrived,
        &message,
        &status);
    if (code != MPI_SUCCESS) {
      abort(
          operation,
          RankReport::kError,
          "failed: MPI_Improbe says: " + text_of(code));
      return;
    }
    if (has_arrived == 0) {
      return;
    }
    int num_bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &num_bytes);
    auto& expected = operation.expected[status.MPI_SOURCE];
    const bool is_expected = !expected.empty();
    if (!is_expected || expected.front().num_bytes != num_bytes) {
      abort(
          operation,
          RankReport::kError,
          c10::str(
              "failed: expected ",
              is_expected ? expected.front().num_bytes : 0,
              " bytes from rank ",
              status.MPI_SOURCE,
              ", but got ",
              num_bytes,
              " (compare this rank's output sizes with that rank's input"
              " sizes)"));
      return;
    }
    const auto receive = expected.front();
    expected.pop_front();
    --operation.num_expected;
    add(operation,
        {.function = "MPI_Imrecv", .rank = status.MPI_SOURCE},
        [&](auto* request) {
          return MPI_Imrecv(
              receive.data, receive.num_bytes, MPI_BYTE, &message, request);
        });
  }
}

bool MpiWorld::test(MpiOperation& operation) {
  const std::lock_guard lock(mutex_);
  if (!operation.waits_since) {
    operation.waits_since = Clock::now();
  }
  progress(operation);
  return operation.is_done;
}

void MpiWorld::wait(MpiOperation& operation, milliseconds timeout) {
  const auto since = Clock::now();
  Backoff backoff;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      operation.waits_since = since;
      progress(operation);
      if (!operation.is_done && Clock::now() - since >= timeout) {
        abort(
            operation,
            RankReport::kTimeout,
            c10::str("did not complete within ", timeout.count(), " ms"));
      }
      if (operation.error) {
        std::rethrow_exception(operation.error);
      }
      if (operation.is_done) {
        return;
      }
    }
    backoff();
  }
}

bool MpiWorld::is_done(const MpiOperation& operation) const {
  const std::lock_guard lock(mutex_);
  return operation.is_done;
}

std::exception_ptr MpiWorld::error_of(const MpiOperation& operation) const {
  const std::lock_guard lock(mutex_);
  return operation.error;
}

void MpiWorld::progress(MpiOperation& operation) {
  // Take the messages of all collectives in flight, because another rank may wait for
  // them in another order.
  for (size_t i = 0; i < in_flight_.size() && !first_error_; ++i) {
    take_messages(*in_flight_[i]);
  }
  if (operation.is_done) {
    return;
  }
  if (first_error_) {
    operation.is_done = true;
    operation.error = make_error(c10::str(
        where(),
        " ",
        name_of(operation.collective, operation.number),
        " has no result, because another collective failed: ",
        *first_error_));
    return;
  }
  int is_done = 0;
  operation.statuses.resize(operation.requests.size());
  const int code = MPI_Testall(
      static_cast<int>(operation.requests.size()),
      operation.requests.data(),
      &is_done,
      operation.statuses.data());
  // Reports are read after the test, which has processed all messages. A late rank
  // fails with the others, although its own part may be complete.
  read_reports();
  if (failure_detector_.has_failed_by(operation.number)) {
    abort(operation, RankReport::kPeerFailed, "was aborted");
    return;
  }
  const bool is_complete = is_done != 0 && operation.num_expected == 0;
  if (code == MPI_SUCCESS && !is_complete) {
    check_peer_errors(operation);
    return;
  }
  const std::string problem = find_problem(operation, code);
  if (problem.empty()) {
    operation.is_done = true;
    operation.tensors.clear();
    remove(operation);
  } else {
    abort(operation, RankReport::kError, "failed: " + problem);
  }
}

std::string MpiWorld::find_problem(const MpiOperation& operation, int code)
    const {
  if (code == MPI_SUCCESS) {
    return "";
  }
  for (size_t i = 0; code == MPI_ERR_IN_STATUS && i < operation.statuses.size();
       ++i) {
    const int error = operation.statuses[i].MPI_ERROR;
    if (error != MPI_SUCCESS && error != MPI_ERR_PENDING) {
      const auto& [function, peer] = operation.transfers[i];
      return c10::str(
          function,
          peer < 0 ? "" : c10::str(" with rank ", peer),
          " says: ",
          text_of(error));
    }
  }
  return "MPI_Testall says: " + text_of(code);
}

void MpiWorld::read_reports() {
  const auto now = Clock::now();
  if (now >= next_read_) {
    next_read_ = now + kReadInterval;
    failure_detector_.read();
  }
}

void MpiWorld::check_peer_errors(MpiOperation& operation) {
  if (const auto exited_rank =
          failure_detector_.rank_exited_before(operation.number)) {
    abort(
        operation,
        RankReport::kError,
        c10::str("can't complete without rank ", *exited_rank));
  } else if (failure_detector_.has_failed()) {
    // A rank has failed in a later collective. This one may still complete, and the
    // next one then reports where this rank is.
    peer_failed_since_ = peer_failed_since_.value_or(Clock::now());
    if (Clock::now() - *peer_failed_since_ >=
        grace_period_of(operation) / kGraceDivisor) {
      abort(operation, RankReport::kPeerFailed, "was aborted");
    }
  }
}

void MpiWorld::abort(
    MpiOperation& operation,
    RankReport::Reason reason,
    const std::string& problem) {
  const auto now = Clock::now();
  const auto waited = now - operation.waits_since.value_or(now);
  const RankReport own{
      .reason = reason,
      .collective = operation.collective,
      .number = operation.number,
      .waited_milliseconds = duration_cast<milliseconds>(waited).count()};
  failure_detector_.announce(own);
  failure_detector_.collect(grace_period_of(operation));
  first_error_ = c10::str(
      where(),
      " ",
      name_of(operation.collective, operation.number),
      " ",
      problem,
      failure_detector_.describe(own));
  operation.is_done = true;
  operation.error = make_error(*first_error_);
}

void MpiWorld::remove(const MpiOperation& operation) {
  std::erase_if(
      in_flight_, [&](const auto& one) { return one.get() == &operation; });
}

void MpiWorld::progress_abandoned() {
  const auto operations = in_flight_;
  for (const auto& operation : operations) {
    // Only the two lists here still refer to it.
    if (operation.use_count() == 2) {
      progress(*operation);
    }
  }
}

// MPI_Finalize waits for all ranks, and never returns if one has failed. This function
// waits for the others, too, but tells them that this rank exits, so that a rank that
// still waits for it can fail.
void MpiWorld::finalize() {
  const std::lock_guard lock(mutex_);
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (first_error_ || is_finalized != 0) {
    return;
  }
  failure_detector_.announce(
      {.reason = RankReport::kExits, .number = num_started_});
  Backoff backoff;
  while (!in_flight_.empty() || !failure_detector_.all_have_exited()) {
    const auto operations = in_flight_;
    for (const auto& operation : operations) {
      progress(*operation);
    }
    failure_detector_.read();
    if (first_error_ || failure_detector_.has_failed()) {
      return;
    }
    backoff();
  }
  MPI_Finalize();
}

}  // namespace tessera::distributed
