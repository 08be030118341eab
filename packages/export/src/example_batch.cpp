// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/example_batch.h"

#include <tessera/common/shorten.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "src/common/check.h"
#include "src/features/id_bags.h"

namespace tessera::exporting {

namespace {

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

// Some rows of a feature, and the previous positions of their ids.
struct SelectedRows {
  Feature feature;
  at::Tensor positions;  // undefined for a dense feature
};

SelectedRows select_rows(const Feature& feature, const at::Tensor& rows) {
  if (const auto* dense = std::get_if<at::Tensor>(&feature)) {
    return {.feature = dense->index_select(0, rows), .positions = {}};
  }
  std::vector<std::vector<int64_t>> positions_of_row;
  at::Tensor values;
  at::Tensor indices;
  at::Tensor shape;
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    values = sparse->values;
    indices = sparse->indices.to(at::kLong).contiguous();
    shape = sparse->dense_shape.to(at::kLong).clone();
    positions_of_row.resize(shape[0].item<int64_t>());
    const int64_t* coordinates = indices.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      positions_of_row.at(coordinates[i * indices.size(1)]).push_back(i);
    }
  } else {
    const auto& ragged = std::get<RaggedFeature>(feature);
    values = ragged.values;
    const at::Tensor splits = ragged.row_splits.to(at::kLong).contiguous();
    const int64_t* offsets = splits.const_data_ptr<int64_t>();
    positions_of_row.resize(splits.numel() - 1);
    for (size_t row = 0; row < positions_of_row.size(); ++row) {
      for (int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
        positions_of_row[row].push_back(i);
      }
    }
  }
  std::vector<int64_t> flat_positions;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < rows.numel(); ++i) {
    const auto& positions = positions_of_row.at(rows[i].item<int64_t>());
    flat_positions.insert(
        flat_positions.end(), positions.begin(), positions.end());
    lengths.push_back(static_cast<int64_t>(positions.size()));
  }
  const at::Tensor positions = at::tensor(flat_positions, at::kLong);
  const at::Tensor row_lengths = at::tensor(lengths, at::kLong);
  values = values.index_select(0, positions);
  if (!shape.defined()) {
    return {RaggedFeature::from_lengths(values, row_lengths), positions};
  }
  indices = indices.index_select(0, positions);
  indices.select(1, 0).copy_(
      at::arange(rows.numel(), at::kLong).repeat_interleave(row_lengths));
  shape[0] = rows.numel();
  return {SparseFeature{indices, values, shape}, positions};
}

}  // namespace

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

ExportExample with_batch_size(
    const ExportExample& example,
    int64_t batch,
    int64_t size,
    const std::string& where) {
  const at::Tensor rows = at::arange(size, at::kLong).remainder(batch);
  std::vector<Feature> features;
  std::map<std::string, at::Tensor> positions;  // by path
  std::map<int64_t, at::Tensor> positions_of_count;
  example.features.for_each([&](const std::string& path, const Feature& from) {
    const int64_t group = rows_of(path, from, where) / batch;
    const at::Tensor all =
        (rows.unsqueeze(1) * group + at::arange(group, at::kLong).unsqueeze(0))
            .flatten();
    SelectedRows selected = select_rows(from, all);
    features.push_back(std::move(selected.feature));
    if (selected.positions.defined()) {
      positions_of_count[values_of(from).numel()] = selected.positions;
      positions[path] = selected.positions;
    }
  });
  std::vector<std::optional<Feature>> weights;
  example.weights.for_each([&](const std::string& path,
                               const std::optional<Feature>& leaf) {
    const bool is_per_id = leaf && positions.count(path) > 0;
    weights.push_back(
        is_per_id ? std::get<at::Tensor>(*leaf).index_select(0, positions[path])
                  : leaf);
  });
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& input : example.inputs) {
    const int64_t count = input.dim() == 0 ? -1 : input.size(0);
    if (count == batch) {
      inputs.push_back(input.index_select(0, rows));
    } else if (positions_of_count.count(count) > 0) {
      inputs.push_back(input.index_select(0, positions_of_count[count]));
    } else {
      inputs.push_back(input);
    }
  }
  return {
      .features = example.features.pack(std::move(features)),
      .weights = example.weights.pack(std::move(weights)),
      .inputs = std::move(inputs)};
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
