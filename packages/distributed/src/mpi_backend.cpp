// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/mpi_backend.h>

#include "packages/distributed/src/fault_board.h"
#include "src/common/check.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::distributed {

namespace {

using c10d::OpType;
using c10d::Work;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// One thread at a time calls MPI.
std::mutex mpi_mutex;
// After a failure, this process ends without MPI_Finalize, which would wait forever for a
// lost rank. mpirun then ends the other processes by SIGTERM and SIGKILL.
std::atomic<bool> has_failed = false;

template <class... Arguments>
[[noreturn]] void fail(
    fmt::format_string<Arguments...> text,
    Arguments&&... arguments) {
  has_failed = true;
  C10_THROW_ERROR(
      DistBackendError,
      "[MpiBackend] " +
          fmt::format(text, std::forward<Arguments>(arguments)...));
}

void check(int code, const char* function, const char* advice) {
  if (code != MPI_SUCCESS) {
    std::array<char, MPI_MAX_ERROR_STRING> text = {};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    fail(
        "{} says: {}. {}",
        function,
        std::string_view(text.data(), length),
        advice);
  }
}

void check_setup(int code, const char* function) {
  check(
      code,
      function,
      "Start the program with the mpirun of the MPI that it was built with.");
}

void check_message(int code, const char* function) {
  check(code, function, "Look at what the other ranks printed last.");
}

// Waits between two polls, so that a waiting rank leaves its core to ranks that
// compute.
class Backoff {
 public:
  void operator()() {
    if (++polls_ < kSpins) {
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
  static constexpr int kSpins = 20;
  // A rank yields for longer than a short sleep takes with Linux's 50 us of timer slack.
  // Otherwise two ranks with small messages wait for each other's sleep, and a message
  // takes 120 us instead of 4.
  static constexpr microseconds kYieldTime{150};
  static constexpr microseconds kMaxSleep{50};

  Clock::time_point since_ = Clock::now();
  int polls_ = 0;
  microseconds sleep_{1};
};

// A message to or from one rank.
class MpiWork final : public Work {
 public:
  MpiWork(OpType type, at::Tensor tensor, milliseconds timeout)
      : Work(-1, type), tensor_(std::move(tensor)), timeout_(timeout) {}

  // `start` calls MPI for one piece of the tensor, because MPI counts bytes as int.
  template <class Start>
  void start(const char* function, Start start) {
    constexpr int64_t kMaxPiece = int64_t{1} << 30;
    const std::lock_guard lock(mpi_mutex);
    auto* data = static_cast<char*>(tensor_.mutable_data_ptr());
    auto left = static_cast<int64_t>(tensor_.nbytes());
    do {
      const auto piece = static_cast<int>(std::min(left, kMaxPiece));
      check_message(start(data, piece, &requests_.emplace_back()), function);
      data += piece;
      left -= piece;
    } while (left > 0);
  }

  bool isCompleted() override {
    const std::lock_guard lock(mpi_mutex);
    int is_done = 0;
    check_message(
        MPI_Testall(
            static_cast<int>(requests_.size()),
            requests_.data(),
            &is_done,
            MPI_STATUSES_IGNORE),
        "MPI_Testall");
    return is_done != 0;
  }

  bool wait(milliseconds timeout) override {
    const milliseconds limit = timeout > kNoTimeout ? timeout : timeout_;
    const auto since = Clock::now();
    for (Backoff backoff; !isCompleted(); backoff()) {
      if (Clock::now() - since >= limit) {
        fail("no message in {} ms", limit.count());
      }
    }
    return true;
  }

 private:
  at::Tensor tensor_;
  milliseconds timeout_;
  std::vector<MPI_Request> requests_;
};

// The ranks of one mpirun.
struct World {
  int rank = 0;
  int size = 1;
  MPI_Comm communicator = MPI_COMM_NULL;
  c10::intrusive_ptr<c10d::Store> store = {};
  std::vector<std::string> hosts = {};
};

// Opens a store in rank 0, in which ranks leave reports. Without the store, errors only
// name the rank at the other end of a connection.
c10::intrusive_ptr<c10d::Store> open_store(
    int rank,
    const std::string& host,
    int& port) {
  c10d::TCPStoreOptions options;
  options.isServer = rank == 0;
  options.waitWorkers = false;
  options.port = static_cast<uint16_t>(port);
  options.timeout = std::chrono::seconds(5);
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    port = store->getPort();
    return store;
  } catch (const std::exception&) {
    return {};
  }
}

void find_hosts(World& world) {
  constexpr int kBytes = 256;
  std::array<char, kBytes> own = {};
  ::gethostname(own.data(), kBytes - 1);
  std::vector<char> all(static_cast<size_t>(world.size) * kBytes);
  check_setup(
      MPI_Allgather(
          own.data(),
          kBytes,
          MPI_BYTE,
          all.data(),
          kBytes,
          MPI_BYTE,
          world.communicator),
      "MPI_Allgather");
  for (int rank = 0; rank < world.size; ++rank) {
    world.hosts.emplace_back(&all[static_cast<size_t>(rank) * kBytes]);
  }
  MPI_Comm machine = MPI_COMM_NULL;
  int ranks_of_machine = 0;
  check_setup(
      MPI_Comm_split_type(
          world.communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine),
      "MPI_Comm_split_type");
  check_setup(MPI_Comm_size(machine, &ranks_of_machine), "MPI_Comm_size");
  check_setup(MPI_Comm_free(&machine), "MPI_Comm_free");
  const std::string host =
      ranks_of_machine == world.size ? "127.0.0.1" : world.hosts[0];
  int port = 0;
  if (world.rank == 0) {
    world.store = open_store(0, host, port);
  }
  check_setup(MPI_Bcast(&port, 1, MPI_INT, 0, world.communicator), "MPI_Bcast");
  if (world.rank != 0 && port != 0) {
    world.store = open_store(world.rank, host, port);
  }
  // All ranks use the store or none, because ranks that do not reach it would look dead.
  int has_store = world.store ? 1 : 0;
  check_setup(
      MPI_Allreduce(
          MPI_IN_PLACE, &has_store, 1, MPI_INT, MPI_MIN, world.communicator),
      "MPI_Allreduce");
  if (has_store == 0) {
    world.store = {};
  }
}

void finalize() {
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (!has_failed && is_finalized == 0) {
    MPI_Finalize();
  }
}

World open_world() {
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized != 0) {
    fail(
        "expected MPI to run, but MPI_Finalize was called. Create the backend before that call.");
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
    // A child of fork() must not finalise MPI.
    static const pid_t process = ::getpid();
    std::atexit([] {
      if (::getpid() == process) {
        finalize();
      }
    });
  }
  if (threads < MPI_THREAD_SERIALIZED) {
    fail(
        "expected MPI with MPI_THREAD_SERIALIZED ({}) or more, but its thread level is {}. Call MPI_Init_thread with MPI_THREAD_MULTIPLE, or let the backend initialise MPI.",
        int{MPI_THREAD_SERIALIZED},
        threads);
  }
  World world;
  check_setup(
      MPI_Comm_dup(MPI_COMM_WORLD, &world.communicator), "MPI_Comm_dup");
  check_setup(
      MPI_Comm_set_errhandler(world.communicator, MPI_ERRORS_RETURN),
      "MPI_Comm_set_errhandler");
  check_setup(MPI_Comm_rank(world.communicator, &world.rank), "MPI_Comm_rank");
  check_setup(MPI_Comm_size(world.communicator, &world.size), "MPI_Comm_size");
  if (world.size > 1) {
    find_hosts(world);
  }
  return world;
}

// The world is never destroyed: MPI may still write into buffers after a failure.
const World& world() {
  static const auto* const world = new World(open_world());
  return *world;
}

class MpiBackend final : public c10d::Backend, public HasFaultBoard {
 public:
  MpiBackend(const World& world, milliseconds timeout, int64_t number)
      : Backend(world.rank, world.size), world_(world), timeout_(timeout) {
    if (world.store) {
      fault_board = std::make_shared<FaultBoard>(
          c10::make_intrusive<c10d::PrefixStore>(
              c10::str("faults/", number), world.store),
          world.rank,
          world.hosts);
    }
  }

  // NOLINTNEXTLINE(readability-const-return-type): c10d declares it so.
  const std::string getBackendName() const override {
    return "mpi";
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>(getBackendName(), timeout_);
  }

  c10::intrusive_ptr<Work> send(
      std::vector<at::Tensor>& tensors,
      int peer,
      int tag) override {
    return start(OpType::SEND, "MPI_Isend", MPI_Isend, tensors, peer, tag);
  }

  // The message may be shorter than the tensor.
  c10::intrusive_ptr<Work> recv(
      std::vector<at::Tensor>& tensors,
      int peer,
      int tag) override {
    return start(OpType::RECV, "MPI_Irecv", MPI_Irecv, tensors, peer, tag);
  }

 private:
  // `call` is the MPI function that is called `name`.
  template <class Call>
  c10::intrusive_ptr<Work> start(
      OpType type,
      const char* name,
      Call* call,
      const std::vector<at::Tensor>& tensors,
      int peer,
      int tag) const {
    TESSERA_CHECK_VALUE(
        tensors.size() == 1 && tensors[0].is_cpu() &&
            tensors[0].is_contiguous(),
        "[MpiBackend] expected one contiguous tensor on the CPU. Call contiguous() or cpu() before.");
    TESSERA_CHECK_VALUE(
        peer >= 0 && peer < size_ && peer != rank_,
        "[MpiBackend] the other rank must be one of {} and not this one, {}, but got {}.",
        size_,
        rank_,
        peer);
    TESSERA_CHECK_VALUE(
        tag >= 0, "[MpiBackend] tag must be >= 0, but got {}.", tag);
    auto work = c10::make_intrusive<MpiWork>(type, tensors[0], timeout_);
    work->start(name, [&](char* data, int bytes, MPI_Request* request) {
      return call(
          data, bytes, MPI_BYTE, peer, tag, world_.communicator, request);
    });
    return work;
  }

  const World& world_;
  milliseconds timeout_;
};

}  // namespace

bool has_mpi() {
  return true;
}

c10::intrusive_ptr<c10d::Backend> make_mpi_backend(milliseconds timeout) {
  TESSERA_CHECK_VALUE(
      timeout >= milliseconds(1) && timeout <= std::chrono::years(1),
      "[make_mpi_backend] timeout must be from 1 ms to a year, but got {} ms. Set the time that a rank may wait for the others.",
      timeout.count());
  static std::atomic<int64_t> backends = 0;
  return c10::make_intrusive<MpiBackend>(world(), timeout, backends++);
}

}  // namespace tessera::distributed
