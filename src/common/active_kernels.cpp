// SPDX-License-Identifier: Apache-2.0
#include "src/common/active_kernels.h"

#include <cstdlib>

#include "src/common/check.h"
#include "src/common/names.h"

namespace tessera {

namespace {

const kernels::KernelTable& choose() {
  const char* forced = std::getenv("TESSERA_ISA");
  if (forced == nullptr || *forced == '\0') {
    return kernels::available_kernels().front();
  }
  const kernels::KernelTable* table = kernels::find_kernels(forced);
  TESSERA_CHECK_VALUE(
      table != nullptr,
      "[TESSERA_ISA] expected an instruction set that this machine can run, one of {}, but got '{}'. Unset the environment variable, or set it to one of these.",
      join_names(kernels::available_kernels(), &kernels::KernelTable::isa),
      forced);
  return *table;
}

}  // namespace

const kernels::KernelTable& active_kernels() {
  static const kernels::KernelTable& table = choose();
  return table;
}

}  // namespace tessera
