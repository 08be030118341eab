// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The name of the metadata among those of tensors.
inline constexpr const char* kSafetensorsMetadata = "__metadata__";

/// What the JSON at the beginning of a safetensors file says.
struct SafetensorsHeader {
  struct Entry {
    std::string name = {};
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> shape = {};
    /// In the data, which begins after the header.
    size_t begin = 0;
    size_t end = 0;
  };

  /// In the order of the text.
  std::vector<Entry> entries = {};
  std::map<std::string, std::string> metadata = {};
};

/// Reads the header and finds that its tensors cover `data_size` bytes without
/// holes and overlaps.
/// Errors:  c10::ValueError beginning with `where`.
SafetensorsHeader read_safetensors_header(
    std::string_view text,
    size_t data_size,
    const std::string& where);

}  // namespace tessera
