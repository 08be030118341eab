// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/kernels.h"

#include <algorithm>
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
  const auto found = std::ranges::find(tables, isa, &Table::isa);
  return found == tables.end() ? nullptr : &*found;
}

}  // namespace tessera::kernels
