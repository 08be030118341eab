// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __has_include(<torch/csrc/distributed/c10d/Backend.hpp>)
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else  // a LibTorch without its distributed package
#include <c10/util/intrusive_ptr.h>
namespace c10d {
class Backend : public c10::intrusive_ptr_target {};
}  // namespace c10d
#endif

#include <chrono>

namespace tessera::distributed {

/// Of make_mpi_backend().
struct MpiBackendOptions {
  /// How long a rank waits in one collective for the others, >= 1 ms. Not for the
  /// start of MPI, which waits for all processes of mpirun.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

/// Whether this build has MPI.
bool has_mpi();

/// All processes of one `mpirun` as a c10d backend named "mpi"; a program that
/// was started without it is a world of one rank. To be called by all ranks.
///
///   auto backend = tessera::distributed::make_mpi_backend();
///   backend->alltoall_base(output, input, output_splits, input_splits)->wait();
///
/// Has alltoall, alltoall_base, allgather, _allgather_base, allreduce, broadcast
/// and barrier, for contiguous CPU tensors, one tensor per rank. All ranks issue
/// the same collectives in the same order; several may be in flight, and be
/// waited for in any order, from any thread. Data move while some thread waits,
/// or asks isCompleted(). wait() has the time-out; isCompleted() has none.
///
/// When a rank does not come, all others fail together, at most two seconds
/// after the first time-out, and their errors name it. A failed backend stays
/// so: each later call raises, quoting the first error.
///
/// MPI is initialised unless the program has done so, and is then finalised at
/// the end of the process, which waits there for the other ranks; after a
/// failure it does not, and mpirun ends the job. The communicators are the
/// process's: a second backend shares them. A program that calls MPI itself from
/// other threads at the same time needs MPI_THREAD_MULTIPLE, which is asked for.
///
/// Does not promise: reductions in the same order in every run, recovery after a
/// failure, a check that ranks pass equal sizes to allreduce or broadcast.
/// Errors:  c10::ValueError and c10::TypeError for arguments, before anything is
///          sent; c10::DistBackendError for what goes wrong between ranks;
///          c10::NotImplementedError where this build has no MPI.
c10::intrusive_ptr<c10d::Backend> make_mpi_backend(
    const MpiBackendOptions& options = {});

}  // namespace tessera::distributed
