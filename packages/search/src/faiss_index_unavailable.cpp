// SPDX-License-Identifier: Apache-2.0
#include <tessera/search/faiss_index.h>

#include "src/common/check.h"

namespace tessera {

namespace {

[[noreturn]] void refuse(const char* where) {
  TESSERA_CHECK_NOT_IMPLEMENTED(
      false,
      "{} expected a Tessera with faiss, but this one was built without it. Install faiss (Debian: libfaiss-dev), then configure and build Tessera again with -DTESSERA_WITH_FAISS=ON, or use make_exact_index().",
      where);
}

}  // namespace

bool has_faiss() {
  return false;
}

std::unique_ptr<TopKIndex> make_faiss_index(
    const at::Tensor&,
    const at::Tensor&,
    const FaissIndexOptions&) {
  refuse("[make_faiss_index]");
}

std::unique_ptr<TopKIndex> load_faiss_index(const std::string&) {
  refuse("[load_faiss_index]");
}

}  // namespace tessera
