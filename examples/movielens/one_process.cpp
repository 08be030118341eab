// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/ranks.h"

#include <c10/util/Exception.h>

Process join_processes() {
  TORCH_CHECK_VALUE(
      false,
      "[movielens] this program is built for one process, but got --sharded. Run './run train --ranks N', "
      "which builds and starts movielens_ranks.");
}
