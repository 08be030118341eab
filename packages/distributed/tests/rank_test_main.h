// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/distributed/gloo_backend.h>
#include <tessera/distributed/mpi_backend.h>

namespace tessera::test {

/// The backend of this process: Gloo's, or MPI's if the variable TESSERA_TEST_BACKEND is
/// "mpi".
inline c10::intrusive_ptr<c10d::Backend> make_test_backend(
    std::chrono::milliseconds timeout) {
  const char* name = std::getenv("TESSERA_TEST_BACKEND");
  return name != nullptr && std::string_view(name) == "mpi"
      ? distributed::make_mpi_backend(timeout)
      : distributed::make_gloo_backend({.timeout = timeout});
}

/// The backend of all tests in a program with rank_test_main.cpp. Every rank runs every
/// test. A test that fails on one rank must not keep the others waiting, so call
/// collectives before ASSERT, and prefer EXPECT.
c10d::Backend& backend();

}  // namespace tessera::test
