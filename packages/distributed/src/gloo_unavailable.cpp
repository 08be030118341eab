// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/gloo_backend.h>

#include "src/common/check.h"

namespace tessera::distributed {

bool has_gloo() {
  return false;
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const GlooBackendOptions&) {
  TESSERA_CHECK_NOT_IMPLEMENTED(
      false,
      "[make_gloo_backend] expected a Tessera with Gloo, but this one was built without it. Install the headers of Gloo (Debian: libgloo-dev), use a LibTorch that has c10d::ProcessGroupGloo, such as PyPI's, then configure and build Tessera again with -DTESSERA_WITH_GLOO=ON.");
}

}  // namespace tessera::distributed
