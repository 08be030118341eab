// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/dense_dtype.h"

#include <tessera/common/shorten.h>

#include "packages/serving/src/format/dense_dtypes.h"
#include "src/common/check.h"

#include <array>
#include <string_view>
#include <utility>

namespace tessera::serving {

namespace {

// The dtypes of kDenseDtypes.
constexpr auto kNamedDtypes =
    std::to_array<std::pair<at::ScalarType, std::string_view>>({
        {at::kFloat, "float32"},
        {at::kDouble, "float64"},
        {at::kHalf, "float16"},
        {at::kBFloat16, "bfloat16"},
        {at::kLong, "int64"},
        {at::kInt, "int32"},
        {at::kShort, "int16"},
        {at::kChar, "int8"},
        {at::kByte, "uint8"},
        {at::kBool, "bool"},
    });

static_assert(kNamedDtypes.size() == kDenseDtypes.size());

}  // namespace

std::string dense_dtype_name(at::ScalarType dtype) {
  for (const auto& [known, name] : kNamedDtypes) {
    if (known == dtype) {
      return std::string(name);
    }
  }
  return c10::toString(dtype);
}

at::ScalarType dense_dtype_from_string(std::string_view name) {
  for (const auto& [dtype, known] : kNamedDtypes) {
    if (known == name) {
      return dtype;
    }
  }
  TESSERA_CHECK_VALUE(
      false,
      "[Program] a dense weight has the dtype '{}', which a program can't read. Train with weights of float32.",
      shorten(std::string(name)));
}

}  // namespace tessera::serving
