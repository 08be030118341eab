// SPDX-License-Identifier: Apache-2.0
// Only this file knows the folder of the sources, so that ccache finds the other files for a clone in another folder.
#include "tests/test_files.h"

namespace tessera::test {

std::string test_file(const std::string& name) {
  return std::string(TESSERA_TESTS_DIR) + "/" + name;
}

}  // namespace tessera::test
