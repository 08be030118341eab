// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/column_type.h>

#include "src/common/names.h"

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
  return value_named<ColumnType::kUInt64Bits>(
      name, kTypeNames, "[ColumnType] the type of a column");
}

}  // namespace tessera::data
