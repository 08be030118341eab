// SPDX-License-Identifier: Apache-2.0
#include "src/common/file_advice.h"

#include <cerrno>

namespace tessera {

const char* advice_to_read(int number) {
  switch (number) {
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
      return "Correct the path.";
    case EACCES:
    case EPERM:
      return "Choose a path that you may read.";
    case EMFILE:
    case ENFILE:
      return "Close other files first.";
    default:
      return "Choose another path.";
  }
}

const char* advice_to_write(int number) {
  switch (number) {
    case ENOENT:
      return "Make its folder first, or choose another path.";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Choose a path that you may write to.";
    case ENOSPC:
    case EDQUOT:
      return "Free some space, or choose another path.";
    case EFBIG:
      return "Choose a path where files may be larger.";
    case ENAMETOOLONG:
      return "Choose a shorter path.";
    case EMFILE:
    case ENFILE:
      return "Close other files first.";
    default:
      return "Choose another path.";
  }
}

}  // namespace tessera
