// SPDX-License-Identifier: Apache-2.0
// This program is linked to faiss_index_unavailable.cpp, even where faiss is
// installed.
#include <tessera/search/faiss_index.h>

#include "tests/test_util.h"

namespace tessera {

namespace faiss_unavailable_test {

TEST(FaissUnavailableTest, SaysWhatToInstall) {
  EXPECT_FALSE(has_faiss());
  EXPECT_RAISES(
      c10::NotImplementedError,
      make_faiss_index({}),
      "this one was built without it. Install faiss (Debian: libfaiss-dev)");
  EXPECT_RAISES(
      c10::NotImplementedError, load_faiss_index("x"), "[load_faiss_index]");
}

}  // namespace faiss_unavailable_test

}  // namespace tessera
