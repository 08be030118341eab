// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera {

/// log2(2^a + 2^b), with an error below 1e-15 plus that of a rounding to double.
double log2_of_sum(double a, double b);

/// log2(count), for count >= 1.
double log2_of_count(uint32_t count);

}  // namespace tessera
