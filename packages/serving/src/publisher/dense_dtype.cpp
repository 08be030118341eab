// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/dense_dtype.h"

#include <tessera/common/shorten.h>

#include "packages/serving/src/format/dense_dtypes.h"
#include "src/common/check.h"

#include <array>
#include <cstddef>

namespace tessera::serving {

namespace {

// LibTorch's dtypes, in the order of kDenseDtypes.
constexpr auto kScalarTypes = std::to_array<at::ScalarType>(
    {at::kFloat,
     at::kDouble,
     at::kHalf,
     at::kBFloat16,
     at::kLong,
     at::kInt,
     at::kShort,
     at::kChar,
     at::kByte,
     at::kBool});
static_assert(kScalarTypes.size() == kDenseDtypes.size());

}  // namespace

std::string dense_dtype_name(at::ScalarType dtype) {
  for (size_t i = 0; i < kScalarTypes.size(); ++i) {
    if (kScalarTypes[i] == dtype) {
      return std::string(kDenseDtypes[i].name);
    }
  }
  return c10::toString(dtype);
}

at::ScalarType dense_dtype_from_string(std::string_view name) {
  for (size_t i = 0; i < kDenseDtypes.size(); ++i) {
    if (kDenseDtypes[i].name == name) {
      return kScalarTypes[i];
    }
  }
  TESSERA_CHECK_VALUE(
      false,
      "[Program] a dense weight has the dtype '{}', which a program can't read. Train with weights of float32.",
      shorten(std::string(name)));
}

}  // namespace tessera::serving
