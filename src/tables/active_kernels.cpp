// SPDX-License-Identifier: Apache-2.0
#include "src/tables/active_kernels.h"

#include <cstdlib>
#include <string>

#include "src/common/check.h"

namespace tessera {

namespace {

const kernels::KernelTable& choose() {
  const char* forced = std::getenv("TESSERA_ISA");
  if (forced == nullptr || *forced == '\0') {
    return kernels::available_kernels().front();
  }
  const kernels::KernelTable* table = kernels::find_kernels(forced);
  std::string choices;
  for (const kernels::KernelTable& known : kernels::available_kernels()) {
    choices += (choices.empty() ? "" : ", ") + known.isa;
  }
  TESSERA_CHECK_VALUE(
      table != nullptr,
      "[TESSERA_ISA] this machine runs one of {}, but got '{}'. Unset the variable or name one of these.",
      choices,
      forced);
  return *table;
}

}  // namespace

const kernels::KernelTable& active_kernels() {
  static const kernels::KernelTable& table = choose();
  return table;
}

}  // namespace tessera
