// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/dense_dtype.h"

#include <tessera/common/shorten.h>

#include "packages/serving/src/format/version_file.h"
#include "src/common/check.h"

#include <array>
#include <cstddef>

namespace tessera::serving {

namespace {

// In the order of kDenseDtypes.
constexpr std::array<at::ScalarType, kDenseDtypes.size()> kDtypes{
    at::kFloat,
    at::kDouble,
    at::kHalf,
    at::kBFloat16,
    at::kLong,
    at::kInt,
    at::kShort,
    at::kChar,
    at::kByte,
    at::kBool};

}  // namespace

std::string dense_dtype_name(at::ScalarType dtype) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes.at(i) == dtype) {
      return std::string(kDenseDtypes.at(i).name);
    }
  }
  return c10::toString(dtype);
}

at::ScalarType dense_dtype_from_string(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDenseDtypes.at(i).name == name) {
      return kDtypes.at(i);
    }
  }
  TESSERA_CHECK_VALUE(
      false,
      "[Program] a dense weight has the dtype '{}', which a program can't read. Train with weights of float32.",
      shorten(std::string(name)));
}

}  // namespace tessera::serving
