// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/kernels.h"

namespace tessera::kernels {

// Each function sets its part of `table`, for Highway's current target.
//
// The kernels should avoid templates of the standard library. GCC compiles such templates
// for the target, too, and their names are external, so that the linker may give the
// AVX-512 version to the whole program.
void add_interaction_kernels(KernelTable& table);
void add_lookup_kernels(KernelTable& table);
void add_product_kernels(KernelTable& table);
void add_quantized_kernels(KernelTable& table);
void add_random_kernels(KernelTable& table);
void add_sequence_kernels(KernelTable& table);
void add_update_kernels(KernelTable& table);

}  // namespace tessera::kernels
