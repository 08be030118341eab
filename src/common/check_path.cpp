// SPDX-License-Identifier: Apache-2.0
#include "src/common/check_path.h"

#include <tessera/common/shorten.h>

#include <cstddef>

#include "src/common/check.h"

namespace tessera {

void check_path(const std::string& path, const std::string& where) {
  constexpr size_t kMaxPath = 4096;  // the limit of Linux
  TESSERA_CHECK_VALUE(
      path.find('\0') == std::string::npos,
      "{} expected a path without a zero byte, but got '{}'. Choose another path.",
      where,
      shorten(path));
  TESSERA_CHECK_VALUE(
      path.size() <= kMaxPath,
      "{} expected a path of at most {} bytes, but got '{}'. Choose another path.",
      where,
      kMaxPath,
      shorten(path));
}

}  // namespace tessera
