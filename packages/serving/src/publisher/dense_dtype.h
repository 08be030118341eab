// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

namespace tessera::serving {

/// The name of a dtype in a version: "float32", "int64", ...
std::string dense_dtype_name(at::ScalarType dtype);

/// Errors:  c10::ValueError for another name.
at::ScalarType dense_dtype_from_string(std::string_view name);

}  // namespace tessera::serving
