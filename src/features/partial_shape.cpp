// SPDX-License-Identifier: Apache-2.0
#include <tessera/features/partial_shape.h>

#include "src/common/check.h"

#include <cstddef>

namespace tessera {

std::string to_string(const PartialShape& shape) {
  std::string text;
  for (const std::optional<int64_t>& size : shape) {
    text.append(text.empty() ? "[" : ", ");
    text.append(size ? std::to_string(*size) : "?");
  }
  return text.empty() ? "[]" : text + "]";
}

std::optional<std::vector<int64_t>> known_sizes(const PartialShape& shape) {
  std::vector<int64_t> sizes;
  for (const std::optional<int64_t>& size : shape) {
    if (!size) {
      return std::nullopt;
    }
    sizes.push_back(*size);
  }
  return sizes;
}

std::optional<PartialShape> merge(
    const PartialShape& left,
    const PartialShape& right) {
  if (left.size() != right.size()) {
    return std::nullopt;
  }
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i] && right[i] && *left[i] != *right[i]) {
      return std::nullopt;
    }
  }
  return fill_unknown(left, right);
}

PartialShape fill_unknown(PartialShape shape, const PartialShape& other) {
  TESSERA_CHECK_VALUE(
      shape.size() == other.size(),
      "[fill_unknown] expected two shapes of the same rank, but got {} and {}. Compare their ranks before the call.",
      to_string(shape),
      to_string(other));
  for (size_t i = 0; i < shape.size(); ++i) {
    shape[i] = shape[i] ? shape[i] : other[i];
  }
  return shape;
}

}  // namespace tessera
