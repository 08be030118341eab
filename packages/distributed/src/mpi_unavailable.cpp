// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/mpi_backend.h>

#include "src/common/check.h"

namespace tessera::distributed {

bool has_mpi() {
  return false;
}

c10::intrusive_ptr<c10d::Backend> make_mpi_backend(std::chrono::milliseconds) {
  TESSERA_CHECK_NOT_IMPLEMENTED(
      false,
      "[MpiBackend] expected a Tessera with MPI, but this one was built without it. Install MPI (Debian: libopenmpi-dev and openmpi-bin, or libmpich-dev and mpich), then configure and build Tessera again with -DTESSERA_WITH_MPI=ON.");
}

}  // namespace tessera::distributed
