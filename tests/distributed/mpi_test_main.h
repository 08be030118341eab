// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace tessera::test {

/// The backend of all tests in a program with mpi_test_main.cpp. Every rank runs every
/// test. A test that fails on one rank must not keep the others waiting, so call
/// collectives before ASSERT, and prefer EXPECT.
c10d::Backend& backend();

}  // namespace tessera::test
