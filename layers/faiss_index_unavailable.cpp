// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/faiss_index.h>

#include <c10/util/Exception.h>

namespace tessera {

namespace {

[[noreturn]] void refuse(const char* where) {
  C10_THROW_ERROR(
      NotImplementedError,
      c10::str(
          where,
          " expected a Tessera with faiss, but this one was built without it."
          " Install faiss (Debian: libfaiss-dev), and configure and build Tessera"
          " anew with -DTESSERA_WITH_FAISS=ON; or use make_exact_index()."));
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
