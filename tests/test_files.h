// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tessera::test {

/// The path of a file or folder in tests/.
std::string test_file(const std::string& name);

}  // namespace tessera::test
