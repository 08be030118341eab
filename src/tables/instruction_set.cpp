// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/instruction_set.h>

#include "src/common/active_kernels.h"

namespace tessera {

std::string instruction_set() {
  return active_kernels().isa;
}

}  // namespace tessera
