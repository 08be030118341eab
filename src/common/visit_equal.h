// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

/// Calls visit(i) for each i in [begin, end) with values[i] == value. It is fast if few
/// values are equal. visit(i) may change values[i].
template <class Visit>
void visit_equal(
    const uint32_t* values,
    int64_t begin,
    int64_t end,
    uint32_t value,
    const Visit& visit) {
  constexpr int64_t kBlock = 64;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t last = std::min(end, first + kBlock);
    // This loop has no early exit, so that the compiler uses vector instructions.
    uint32_t num_equal = 0;
    for (int64_t i = first; i < last; ++i) {
      num_equal += values[i] == value ? 1 : 0;
    }
    for (int64_t i = first; i < last && num_equal > 0; ++i) {
      if (values[i] == value) {
        visit(i);
        --num_equal;
      }
    }
  }
}

}  // namespace tessera
