// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace tessera::test {

/// The backend of all tests in a binary with mpi_test_main.cpp. Every rank runs
/// every test; a test that fails on one rank must not keep the others waiting, so
/// collectives come before ASSERT, and EXPECT is better.
c10d::Backend& backend();

}  // namespace tessera::test
