// SPDX-License-Identifier: Apache-2.0
// One rank misbehaves. Each rank that survives writes its errors into
// SCRATCH/rank_<rank>.txt, and check_mpi_faults.cmake reads these files.
//
//   mpirun -np 4 mpi_faults FAULT SCRATCH
#include <tessera/distributed/mpi_backend.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kTimeout{2000};
constexpr int kFaultyRank = 2;
constexpr int kGoodRounds = 16;
// So large that MPI sends nothing before the other side receives.
constexpr int64_t kRowsPerRank = 50000;

void alltoall(c10d::Backend& backend, int64_t rows_per_rank = kRowsPerRank) {
  at::Tensor input = at::arange(rows_per_rank * backend.getSize(), at::kLong);
  at::Tensor output = at::empty_like(input);
  std::vector<int64_t> equal;
  backend.alltoall_base(output, input, equal, equal)->wait();
}

// A child ends the stopped process in case mpirun forgets it.
void stop_for_ever() {
  const pid_t self = ::getpid();
  if (::fork() == 0) {
    for (int descriptor = 0; descriptor < 1024; ++descriptor) {
      ::close(descriptor);  // mpirun waits until all of its pipes are closed.
    }
    for (int i = 0; i < 15 && ::getppid() == self; ++i) {
      ::sleep(1);
    }
    if (::getppid() == self) {
      ::kill(self, SIGKILL);
    }
    ::_exit(0);
  }
  ::raise(SIGSTOP);
}

void misbehave(const std::string& fault, c10d::Backend& backend) {
  if (fault == "stops") {
    stop_for_ever();
  } else if (fault == "is_killed") {
    ::raise(SIGKILL);
  } else if (fault == "sleeps") {
    std::this_thread::sleep_for(seconds(12));
  } else if (fault == "leaves") {
    std::exit(0);
  } else if (fault == "calls_barrier") {
    backend.barrier()->wait();
  } else if (fault == "calls_barrier_first") {
    const auto barrier = backend.barrier();  // This rank does not wait for it.
    alltoall(backend);
  } else if (fault == "comes_late") {
    std::this_thread::sleep_for(kTimeout + seconds(1));
    alltoall(backend);
  } else if (fault == "sends_less") {
    alltoall(backend, kRowsPerRank - 1);
  } else {
    TORCH_CHECK_VALUE(false, "[mpi_faults] unknown fault '", fault, "'");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: mpi_faults FAULT SCRATCH\n";
    return 2;
  }
  const std::string fault = argv[1];
  const auto backend =
      tessera::distributed::make_mpi_backend({.timeout = kTimeout});
  const int rank = backend->getRank();
  std::ofstream file(
      std::string(argv[2]) + "/rank_" + std::to_string(rank) + ".txt");
  file << "pid: " << ::getpid() << std::endl;
  for (int round = 0; round < kGoodRounds; ++round) {
    alltoall(*backend);
  }

  const auto before = std::chrono::steady_clock::now();
  try {
    if (rank == kFaultyRank) {
      misbehave(fault, *backend);
    } else {
      alltoall(*backend);
    }
    file << "no error" << std::endl;
  } catch (const c10::DistBackendError& error) {
    const auto after = std::chrono::steady_clock::now();
    file << "milliseconds: "
         << std::chrono::duration_cast<milliseconds>(after - before).count()
         << "\nerror: " << error.what_without_backtrace() << std::endl;
  }
  try {
    backend->barrier();
  } catch (const c10::DistBackendError& error) {
    file << "again: " << error.what_without_backtrace() << std::endl;
  }
  // mpirun ends all ranks when one ends.
  std::this_thread::sleep_for(seconds(2));
  return 3;
}
