// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// Files of the safetensors packages. What npy.h says of dtypes, of replaced files
// and of errors holds here, too; bfloat16 can be saved as well.

/// The tensors of a safetensors file, by name, and its metadata.
///
///   save_safetensors({.tensors = {{"users", users}}}, "tables.safetensors");
///   load_safetensors("tables.safetensors")["users"];
struct NamedTensors {
  /// Names differ, and are not `__metadata__`.
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};
  std::map<std::string, std::string> metadata = {};

  /// Errors:  c10::ValueError when there is none, with some of the known names.
  at::Tensor operator[](const std::string& name) const;
};

/// Source:  https://huggingface.co/docs/safetensors
void save_safetensors(const NamedTensors& contents, const std::string& path);

/// All tensors, in the header's order.
NamedTensors load_safetensors(const std::string& path);

}  // namespace tessera
