// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __has_include(<torch/csrc/distributed/c10d/Backend.hpp>)
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else  // This LibTorch has no distributed package.
#include <c10/util/intrusive_ptr.h>
namespace c10d {
class Backend : public c10::intrusive_ptr_target {};
}  // namespace c10d
#endif

#include <chrono>

namespace tessera::distributed {

/// Whether this build has MPI.
bool has_mpi();

// snippet: tests/docs/sharded.cpp make_mpi_backend
/// Makes a c10d backend named "mpi" for sharded_strategy(). Its ranks are all processes of
/// one `mpirun`. A program that was started without `mpirun` has one rank. All ranks
/// must call this function. MPI is faster than Gloo for small messages and on one machine;
/// make_gloo_backend() needs no MPI.
///
///   const auto backend = make_mpi_backend(std::chrono::minutes(5));
///
/// The backend has what sharded tables need: send() and recv() of one contiguous tensor on
/// the CPU. Any thread may call them. Data moves while a thread calls wait().
///
/// If the program has not initialised MPI, this function does so, and requests
/// MPI_THREAD_MULTIPLE. MPI is then finalised at the end of the process, which waits there
/// for the other ranks. After a failure the process does not wait, and mpirun ends the job.
/// A program that calls MPI from other threads at the same time needs
/// MPI_THREAD_MULTIPLE.
///
/// `timeout`, >= 1 ms, says how long a rank waits for the others in one exchange. The start
/// of MPI has no timeout: it waits for all processes of mpirun.
///
/// A failed backend cannot recover.
/// Errors:  c10::ValueError for wrong arguments; c10::DistBackendError for failures between
///          ranks; c10::NotImplementedError if this build has no MPI.
c10::intrusive_ptr<c10d::Backend> make_mpi_backend(
    std::chrono::milliseconds timeout = std::chrono::minutes(30));

}  // namespace tessera::distributed
