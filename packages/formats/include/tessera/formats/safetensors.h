// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// These are the files of the safetensors packages. The rules in npy.h about dtypes,
// replaced files and errors hold here, too. In addition, bfloat16 can be saved.

// snippet: tests/docs/reference_layers_test.cpp NamedTensors
/// The named tensors of a safetensors file, and its metadata.
///
///   save_safetensors({.tensors = {{"users", users}}}, "tables.safetensors");
///   const NamedTensors tables = load_safetensors("tables.safetensors");
///   const at::Tensor loaded = tables["users"];
struct NamedTensors {
  /// All names must differ, and none may be `__metadata__`.
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};
  std::map<std::string, std::string> metadata = {};

  /// Returns the tensor of this name.
  /// Errors:  c10::ValueError with some of the known names, if there is none.
  at::Tensor operator[](const std::string& name) const;
};

/// Writes a safetensors file.
/// Source:  https://huggingface.co/docs/safetensors
void save_safetensors(const NamedTensors& contents, const std::string& path);

/// Reads all tensors of a safetensors file, in the order of its header.
NamedTensors load_safetensors(const std::string& path);

}  // namespace tessera
