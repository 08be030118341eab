// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/kernels.h"

namespace tessera::kernels {

// Each fills its part of `table` for the target that Highway has chosen now.
void add_interaction_kernels(KernelTable& table);
void add_lookup_kernels(KernelTable& table);
void add_random_kernels(KernelTable& table);
void add_update_kernels(KernelTable& table);

}  // namespace tessera::kernels
