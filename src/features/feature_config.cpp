// SPDX-License-Identifier: Apache-2.0
#include <tessera/features/feature_config.h>

#include <tessera/common/shorten.h>

#include <algorithm>

#include "src/common/check.h"

namespace tessera {

std::string to_string(OutOfRange policy) {
  return policy == OutOfRange::kError ? "error" : "zero";
}

OutOfRange out_of_range_from_string(std::string_view name) {
  TESSERA_CHECK_VALUE(
      name == "error" || name == "zero",
      "[OutOfRange] out_of_range must be one of error, zero, but got '{}'. Use one of these names.",
      shorten(name));
  return name == "error" ? OutOfRange::kError : OutOfRange::kZero;
}

void validate(const FeatureConfig& config, const std::string& path) {
  const std::string where = "[FeatureConfig '" + shorten(path) + "']";
  TESSERA_CHECK_VALUE(
      config.table != nullptr,
      "{} table must be set, but is empty. Make a table with make_table().",
      where);
  validate(*config.table);
  TESSERA_CHECK_VALUE(
      config.max_sequence_length >= 0,
      "{} max_sequence_length must be >= 0, but got {}. Set it to 0 unless this is a sequence feature.",
      where,
      config.max_sequence_length);
  if (config.output_shape) {
    const PartialShape& shape = *config.output_shape;
    TESSERA_CHECK_VALUE(
        !shape.empty() &&
            std::ranges::all_of(
                shape, [](const auto& size) { return size.value_or(1) >= 1; }),
        "{} output_shape must have one or more dimensions, which are >= 1 or unknown, but got {}. Correct it, and leave out the dim of the table.",
        where,
        to_string(shape));
  }
}

}  // namespace tessera
