// SPDX-License-Identifier: Apache-2.0
// This test links mpi_unavailable.cpp even where MPI is installed.
#include <tessera/distributed/mpi_backend.h>

#include "tests/test_util.h"

namespace tessera {

namespace mpi_unavailable_test {

TEST(MpiUnavailableTest, NamesThePackagesToInstall) {
  EXPECT_FALSE(distributed::has_mpi());
  EXPECT_RAISES(
      c10::NotImplementedError,
      distributed::make_mpi_backend(),
      "this one was built without it. Install MPI (Debian: libopenmpi-dev and"
      " openmpi-bin, or libmpich-dev and mpich)");
}

}  // namespace mpi_unavailable_test

}  // namespace tessera
