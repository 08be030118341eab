// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/trace/example_batch.h"

#include <tessera/common/shorten.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "src/common/check.h"
#include "src/features/batch.h"

namespace tessera::exporting {

std::vector<at::Tensor> parts_of(const Feature& feature) {
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    return {sparse->indices, sparse->values, sparse->dense_shape};
  }
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    return {ragged->values, ragged->row_splits};
  }
  return {std::get<at::Tensor>(feature)};
}

at::Tensor values_of(const Feature& feature) {
  const std::vector<at::Tensor> parts = parts_of(feature);
  return parts[parts.size() == 3 ? 1 : 0];
}

Feature feature_of(at::TensorList parts) {
  if (parts.size() == 3) {
    return SparseFeature{parts[0], parts[1], parts[2]};
  }
  if (parts.size() == 2) {
    return RaggedFeature{parts[0], parts[1]};
  }
  return parts[0];
}

ExportExample to_parts(const ExportExample& example, const std::string& where) {
  std::vector<Feature> features;
  for (const Feature& feature : example.features.flatten()) {
    features.push_back(with_sparse_as_feature(feature));
    for (const at::Tensor& part : parts_of(features.back())) {
      TESSERA_CHECK_VALUE(
          part.defined(),
          "{} example.features: expected tensors, but got an undefined tensor. Set all features that forward() takes.",
          where);
    }
  }
  std::vector<std::optional<Feature>> weights;
  for (const std::optional<Feature>& leaf : example.weights.flatten()) {
    weights.push_back(leaf);
    if (leaf) {
      weights.back() = values_of(with_sparse_as_feature(*leaf));
    }
  }
  for (size_t i = 0; i < example.inputs.size(); ++i) {
    TESSERA_CHECK_VALUE(
        example.inputs[i].defined(),
        "{} example.inputs[{}]: expected a tensor, but got an undefined tensor. Set all tensors that forward() takes.",
        where,
        i);
  }
  return {
      .features = example.features.pack(std::move(features)),
      .weights = example.weights.pack(std::move(weights)),
      .inputs = example.inputs};
}

int64_t rows_of(
    const std::string& path,
    const Feature& feature,
    const std::string& where) {
  const std::vector<at::Tensor> parts = parts_of(feature);
  if (parts.size() == 3) {
    return parts[2].numel() == 0 ? 0 : parts[2].flatten()[0].item<int64_t>();
  }
  if (parts.size() == 2) {
    return parts[1].numel() - 1;
  }
  TESSERA_CHECK_VALUE(
      parts[0].dim() >= 1,
      "{} example.features '{}': expected a batch, but got a scalar. Give it the shape [batch, ...].",
      where,
      shorten(path));
  return parts[0].size(0);
}

int64_t batch_size_of(const Features& features, const std::string& where) {
  int64_t batch = std::numeric_limits<int64_t>::max();
  features.for_each([&](const std::string& path, const Feature& feature) {
    batch = std::min(batch, rows_of(path, feature, where));
  });
  TESSERA_CHECK_VALUE(
      batch >= 1 && !features.flatten().empty(),
      "{} example: expected a batch of at least one row, but got an empty one. Pass a batch like those that the model will get.",
      where);
  features.for_each([&](const std::string& path, const Feature& feature) {
    const int64_t rows = rows_of(path, feature, where);
    TESSERA_CHECK_VALUE(
        rows % batch == 0,
        "{} example.features '{}': the number of rows must be a multiple of the batch size {}, but it is {}. Give all features the same number of examples.",
        where,
        shorten(path),
        batch,
        rows);
  });
  return batch;
}

std::vector<at::Tensor> flatten(const ExportExample& batch) {
  std::vector<at::Tensor> tensors;
  for (const Feature& feature : batch.features.flatten()) {
    for (const at::Tensor& part : parts_of(feature)) {
      tensors.push_back(part);
    }
  }
  for (const std::optional<Feature>& weight : batch.weights.flatten()) {
    if (weight) {
      tensors.push_back(std::get<at::Tensor>(*weight));
    }
  }
  tensors.insert(tensors.end(), batch.inputs.begin(), batch.inputs.end());
  return tensors;
}

ExportExample unflatten(
    const ExportExample& example,
    const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  std::vector<Feature> features;
  for (const Feature& feature : example.features.flatten()) {
    std::vector<at::Tensor> parts;
    for (size_t i = parts_of(feature).size(); i > 0; --i) {
      parts.push_back(tensors[next++]);
    }
    features.push_back(feature_of(parts));
  }
  std::vector<std::optional<Feature>> weights = example.weights.flatten();
  for (std::optional<Feature>& weight : weights) {
    if (weight) {
      weight = tensors[next++];
    }
  }
  std::vector<at::Tensor> inputs;
  while (next < tensors.size()) {
    inputs.push_back(tensors[next++]);
  }
  return {
      .features = example.features.pack(std::move(features)),
      .weights = example.weights.pack(std::move(weights)),
      .inputs = std::move(inputs)};
}

}  // namespace tessera::exporting
