// SPDX-License-Identifier: Apache-2.0
#include <tessera/features/partial_shape.h>

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

}  // namespace tessera
