// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/export_torchscript.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera::test {

using TensorLists = std::map<std::string, std::vector<at::Tensor>>;
using Tensors = std::map<std::string, at::Tensor>;

/// Returns a path named after the running test. Removes the file that was there.
inline std::string new_file() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string name =
      std::string(info->test_suite_name()) + "_" + info->name() + ".pt";
  std::replace(name.begin(), name.end(), '/', '_');
  const auto path = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::remove(path);
  return path.string();
}

/// Checks that there is neither this file nor a temporary file of it.
inline void expect_nothing_at(const std::string& path) {
  const std::filesystem::path absent(path);
  for (const auto& entry :
       std::filesystem::directory_iterator(absent.parent_path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(
        absent.filename().string()))
        << entry.path();
  }
}

inline c10::IValue to_dict(const TensorLists& lists) {
  c10::Dict<std::string, c10::List<at::Tensor>> dict;
  for (const auto& [name, tensors] : lists) {
    dict.insert(name, c10::List<at::Tensor>(tensors));
  }
  return dict;
}

inline c10::IValue to_dict(const Tensors& tensors) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, tensor] : tensors) {
    dict.insert(name, tensor);
  }
  return dict;
}

/// Returns the tensors of a feature, as the exported forward() takes them.
inline std::vector<at::Tensor> parts_of(const Feature& feature) {
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    return {sparse->indices, sparse->values, sparse->dense_shape};
  }
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    return {ragged->values, ragged->row_splits};
  }
  return {std::get<at::Tensor>(feature)};
}

inline TensorLists all_parts_of(const Features& features) {
  TensorLists lists;
  features.for_each([&](const std::string& path, const Feature& feature) {
    lists[path] = parts_of(feature);
  });
  return lists;
}

/// Returns the activations of an exported embedding.
inline Tensors run_embedding(
    torch::jit::Module& loaded,
    const TensorLists& features,
    const Tensors& weights = {}) {
  const at::NoGradGuard no_grad;
  Tensors activations;
  const auto result =
      loaded.forward({to_dict(features), to_dict(weights)}).toGenericDict();
  for (const auto& entry : result) {
    activations[entry.key().toStringRef()] = entry.value().toTensor();
  }
  return activations;
}

}  // namespace tessera::test
