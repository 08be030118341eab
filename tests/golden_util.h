// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads cases that TensorFlow and Keras computed, from the folder
// TESSERA_GOLDEN_DIR or from tests/golden.

#include "tests/test_files.h"
#include "tests/test_headers.h"

#include <tessera/common/json.h>
#include <tessera/features/feature.h>

namespace tessera::test {

inline std::filesystem::path golden_folder() {
  const char* folder = std::getenv("TESSERA_GOLDEN_DIR");
  const bool is_set = folder != nullptr && *folder != '\0';
  return is_set ? folder : test_file("golden");
}

/// The sorted names of the files PREFIX*.json, or none if the folder is missing.
inline std::vector<std::string> golden_files(const std::string& prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(golden_folder(), error)) {
    const std::filesystem::path path = entry.path();
    if (path.extension() == ".json" &&
        path.filename().string().starts_with(prefix)) {
      names.push_back(path.filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Reads a file and keeps the order of its keys.
inline Json read_golden(const std::string& name) {
  std::ifstream file(golden_folder() / name);
  return Json::parse(file);
}

/// The name of a parameterized test for a file.
inline std::string golden_test_name(
    const testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).stem().string();
  std::replace_if(
      name.begin(),
      name.end(),
      [](unsigned char letter) { return std::isalnum(letter) == 0; },
      '_');
  return name;
}

/// Reads {"shape": [...], "values": [...]}, where the values are flat.
template <class Json>
at::Tensor golden_tensor(const Json& json) {
  const at::Tensor values = at::tensor(
      json.at("values").template get<std::vector<float>>(), at::kFloat);
  return values.view(json.at("shape").template get<std::vector<int64_t>>());
}

/// Reads a list of rows.
template <class Json>
at::Tensor golden_rows(const Json& json) {
  std::vector<float> values;
  for (const Json& row : json) {
    values.insert(values.end(), row.begin(), row.end());
  }
  return at::tensor(values, at::kFloat)
      .view({static_cast<int64_t>(json.size()), -1});
}

/// Reads the `value` of a feature, without weights.
template <class Json>
Feature golden_feature(const Json& value) {
  const std::string dtype = value.at("dtype");
  const std::string kind = value.at("kind");
  TORCH_CHECK_VALUE(
      dtype == "int32" || dtype == "int64", "unknown dtype ", dtype);
  const auto int64s = [](const Json& json) {
    return at::tensor(json.template get<std::vector<int64_t>>(), at::kLong);
  };
  at::Tensor ids = int64s(value.at("values"));
  ids = dtype == "int32" ? ids.to(at::kInt) : ids;
  if (kind == "dense") {
    return ids.view(value.at("shape").template get<std::vector<int64_t>>());
  }
  if (kind == "ragged") {
    return RaggedFeature{ids, int64s(value.at("row_splits"))};
  }
  TORCH_CHECK_VALUE(kind == "sparse", "unknown kind ", kind);
  std::vector<int64_t> indices;
  for (const Json& index : value.at("indices")) {
    indices.insert(indices.end(), index.begin(), index.end());
  }
  const auto rank = static_cast<int64_t>(value.at("dense_shape").size());
  return SparseFeature{
      .indices = at::tensor(indices, at::kLong).view({-1, rank}),
      .values = ids,
      .dense_shape = int64s(value.at("dense_shape"))};
}

}  // namespace tessera::test
