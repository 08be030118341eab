// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera::serving {

/// A dtype of DenseFile.
struct DenseDtype {
  std::string_view name = {};
  int64_t bytes = 0;  // of a number
};

inline constexpr auto kDenseDtypes = std::to_array<DenseDtype>({
    {"float32", 4},
    {"float64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"int64", 8},
    {"int32", 4},
    {"int16", 2},
    {"int8", 1},
    {"uint8", 1},
    {"bool", 1},
});

}  // namespace tessera::serving
