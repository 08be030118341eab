// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/kernels.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::kernels {

/// Calls collect(isa) for each instruction set that this machine has, the best one first.
/// Meanwhile, HWY_DYNAMIC_DISPATCH chooses the functions of this instruction set.
void for_each_target(
    const std::function<void(const std::string& isa)>& collect);

/// Returns the table of `isa`, or nullptr if there is none.
template <class Table>
const Table* find_table(
    const std::vector<Table>& tables,
    std::string_view isa) {
  for (const Table& table : tables) {
    if (table.isa == isa) {
      return &table;
    }
  }
  return nullptr;
}

/// Sets the kernels of update_kernels.cpp in `table`, for Highway's current target.
void add_update_kernels(KernelTable& table);

}  // namespace tessera::kernels
