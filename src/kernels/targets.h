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

// Each function sets its part of `table`, for Highway's current target.
//
// The kernels should avoid templates of the standard library. GCC compiles such templates
// for the target, too, and their names are external, so that the linker may give the
// AVX-512 version to the whole program.
void add_lookup_kernels(KernelTable& table);
void add_quantized_kernels(KernelTable& table);
void add_random_kernels(KernelTable& table);
void add_scan_kernels(KernelTable& table);
void add_update_kernels(KernelTable& table);

}  // namespace tessera::kernels
