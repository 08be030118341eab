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

/// The key of the metadata in the header. The other keys are the names of the tensors.
inline constexpr const char* kSafetensorsMetadata = "__metadata__";

/// The content of the JSON header of a safetensors file.
struct SafetensorsHeader {
  struct Entry {
    std::string name = {};
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> shape = {};
    /// The bytes [begin, end) of the data, which begins after the header.
    size_t begin = 0;
    size_t end = 0;
  };

  /// The tensors in the order of the header.
  std::vector<Entry> entries = {};
  std::map<std::string, std::string> metadata = {};
};

/// Reads the header and checks that its tensors cover `data_size` bytes without gaps or
/// overlaps.
/// Errors:  c10::ValueError beginning with `where`.
SafetensorsHeader read_safetensors_header(
    std::string_view text,
    size_t data_size,
    const std::string& where);

}  // namespace tessera
