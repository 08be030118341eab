// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/column_type.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"

#include <algorithm>
#include <array>

namespace tessera::data {

namespace {

constexpr std::array<const char*, 4> kTypeNames{
    "int64",
    "float32",
    "text",
    "uint64_bits"};

}  // namespace

std::string to_string(ColumnType type) {
  return kTypeNames.at(static_cast<size_t>(type));
}

ColumnType column_type_from_string(std::string_view name) {
  const auto found = std::find(kTypeNames.begin(), kTypeNames.end(), name);
  TESSERA_CHECK_VALUE(
      found != kTypeNames.end(),
      "[ColumnType] the type of a column must be one of int64, float32, text, uint64_bits, but got '{}'.",
      shorten(name));
  return static_cast<ColumnType>(found - kTypeNames.begin());
}

}  // namespace tessera::data
