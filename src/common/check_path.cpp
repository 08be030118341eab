// SPDX-License-Identifier: Apache-2.0
#include "src/common/check_path.h"

#include <tessera/common/shorten.h>

#include <c10/util/Exception.h>

#include <cstddef>

namespace tessera {

void check_path(const std::string& path, const std::string& where) {
  constexpr size_t kMaxPath = 4096;  // the limit of Linux
  TORCH_CHECK_VALUE(
      path.find('\0') == std::string::npos,
      where,
      " expected a path without a zero byte, but got '",
      shorten(path),
      "'. Choose another path.");
  TORCH_CHECK_VALUE(
      path.size() <= kMaxPath,
      where,
      " expected a path of at most ",
      kMaxPath,
      " bytes, but got '",
      shorten(path),
      "'. Choose another path.");
}

}  // namespace tessera
