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

// snippet: tests/docs/sharded.cpp MpiBackendOptions
/// The options of make_mpi_backend().
///
///   const auto backend = make_mpi_backend({.timeout = std::chrono::minutes(5)});
struct MpiBackendOptions {
  /// How long a rank waits for the others in one collective, >= 1 ms. The start of
  /// MPI has no timeout: it waits for all processes of mpirun.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

/// Whether this build has MPI.
bool has_mpi();

/// Makes a c10d backend named "mpi" of all processes of one `mpirun`. A program that
/// was started without `mpirun` has one rank. All ranks must call this function.
///
///   auto backend = tessera::distributed::make_mpi_backend();
///   backend->alltoall_base(output, input, output_splits, input_splits)->wait();
///
/// The backend has the collectives that sharded tables need: alltoall_base for
/// contiguous CPU tensors, and barrier. All ranks must issue the same collectives in
/// the same order. Several may be in flight; any thread may wait for them, in any
/// order. Data moves while a thread calls wait() or isCompleted(). wait() has a
/// timeout, isCompleted() has none.
///
/// If a rank does not arrive, all others fail together, at most two seconds after the
/// first timeout, and their errors name it. After a failure, each later call raises
/// an error that quotes the first one.
///
/// This function initialises MPI unless the program has done so. In that case MPI is
/// finalised at the end of the process, which waits there for the other ranks. After
/// a failure the process does not wait, and mpirun ends the job. All backends of a
/// process share its communicators. A program that calls MPI from other threads at
/// the same time needs MPI_THREAD_MULTIPLE, which this function requests.
///
/// A failed backend cannot recover.
/// Errors:  c10::ValueError and c10::TypeError for arguments, before anything is
///          sent; c10::DistBackendError for failures between ranks;
///          c10::NotImplementedError if this build has no MPI.
c10::intrusive_ptr<c10d::Backend> make_mpi_backend(
    const MpiBackendOptions& options = {});

}  // namespace tessera::distributed
