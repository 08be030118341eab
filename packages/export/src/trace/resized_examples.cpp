// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/trace/resized_examples.h"

#include <tessera/common/shorten.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "packages/export/src/trace/example_batch.h"
#include "src/common/check.h"

namespace tessera::exporting {

namespace {

// Does not add a shift of 0, because that would change the dtype of bools.
at::Tensor shifted(const at::Tensor& values, int64_t shift) {
  return shift == 0 ? values : values + shift;
}

// `count` rows of a tensor, from the first. After the last row, the first follows again.
at::Tensor repeat_rows(const at::Tensor& tensor, int64_t count) {
  const int64_t rows = tensor.size(0);
  if (rows == 0) {
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes[0] = count;
    return at::zeros(sizes, tensor.options());
  }
  return tensor.index_select(0, at::arange(count, at::kLong).remainder(rows));
}

// Returns how many of `nnz` ids each row has: nnz / rows, and one more in the first rows.
at::Tensor even_lengths(int64_t nnz, int64_t rows) {
  const at::Tensor row = at::arange(rows, at::kLong);
  return row.lt(rows == 0 ? 0 : nnz % rows).to(at::kLong) +
      (rows == 0 ? 0 : nnz / rows);
}

Feature resize_sparse(
    const SparseFeature& sparse,
    const at::Tensor& values,
    int64_t rows) {
  const int64_t nnz = values.size(0);
  const at::Tensor lengths = even_lengths(nnz, rows);
  const at::Tensor row = at::arange(rows, at::kLong).repeat_interleave(lengths);
  const at::Tensor starts = lengths.cumsum(0) - lengths;
  at::Tensor ordinal = at::arange(nnz, at::kLong) -
      (rows == 0 ? at::zeros({0}, at::kLong) : starts.index_select(0, row));
  at::Tensor shape = sparse.dense_shape.to(at::kLong).clone();
  shape[0] = rows;
  std::vector<at::Tensor> columns{row};
  for (int64_t axis = 1; axis < shape.size(0); ++axis) {
    const int64_t size = std::max<int64_t>(shape[axis].item<int64_t>(), 1);
    if (axis + 1 < shape.size(0)) {
      columns.push_back(ordinal.remainder(size));
      ordinal = at::floor_divide(ordinal, size);
    } else {
      columns.push_back(ordinal);  // the last axis may be as long as necessary
      const int64_t last = nnz == 0 ? 0 : ordinal.max().item<int64_t>() + 1;
      shape[axis] = std::max(shape[axis].item<int64_t>(), last);
    }
  }
  return SparseFeature{
      .indices = at::stack(columns, 1).to(sparse.indices.scalar_type()),
      .values = values,
      .dense_shape = shape.to(sparse.dense_shape.scalar_type())};
}

}  // namespace

ResizedExamples::ResizedExamples(
    const ExportExample& example,
    const std::string& where)
    : example_(example) {
  descriptions_.emplace_back("the batch size");
  sizes_.push_back(
      example.features.empty() ? kBatchOfInputs
                               : batch_size_of(example.features, where));
  example.features.for_each(
      [&](const std::string& path, const Feature& feature) {
        FeatureSize size;
        if (!std::holds_alternative<at::Tensor>(feature)) {
          size.symbol = sizes_.size();
          size.rows_per_example = rows_of(path, feature, where) / sizes_[0];
          sizes_.push_back(values_of(feature).numel());
          descriptions_.push_back(
              fmt::format("the number of ids of '{}'", shorten(path)));
        }
        features_.push_back(size);
      });
}

int64_t ResizedExamples::symbol_of(const at::Tensor& input) const {
  const auto found = input.dim() == 0
      ? sizes_.end()
      : std::find(sizes_.begin(), sizes_.end(), input.size(0));
  return found == sizes_.end() ? -1 : found - sizes_.begin();
}

Feature ResizedExamples::resize(
    const Feature& feature,
    const FeatureSize& size,
    const std::vector<int64_t>& sizes,
    int64_t shift) const {
  if (const auto* dense = std::get_if<at::Tensor>(&feature)) {
    const int64_t rows = dense->size(0) / sizes_[0] * sizes[0];
    return shifted(repeat_rows(*dense, rows), shift);
  }
  const int64_t rows = sizes[0] * size.rows_per_example;
  const int64_t nnz = rows == 0 ? 0 : sizes[size.symbol];
  const at::Tensor values =
      shifted(repeat_rows(values_of(feature), nnz), shift);
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    return resize_sparse(*sparse, values, rows);
  }
  const auto& ragged = std::get<RaggedFeature>(feature);
  RaggedFeature resized =
      RaggedFeature::from_lengths(values, even_lengths(nnz, rows));
  resized.row_splits = resized.row_splits.to(ragged.row_splits.scalar_type());
  return resized;
}

ExportExample ResizedExamples::at(
    const std::vector<int64_t>& sizes,
    int64_t shift) const {
  std::vector<Feature> features;
  std::map<std::string, int64_t> counts;  // number of ids by path
  example_.features.for_each(
      [&](const std::string& path, const Feature& feature) {
        features.push_back(
            resize(feature, features_[features.size()], sizes, shift));
        counts[path] = values_of(features.back()).numel();
      });
  std::vector<std::optional<Feature>> weights;
  example_.weights.for_each(
      [&](const std::string& path, const std::optional<Feature>& weight) {
        weights.push_back(weight);
        if (weight) {
          weights.back() = repeat_rows(values_of(*weight), counts.at(path));
        }
      });
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& input : example_.inputs) {
    const int64_t symbol = symbol_of(input);
    inputs.push_back(
        symbol < 0 ? input
                   : repeat_rows(input, sizes[0] == 0 ? 0 : sizes[symbol]));
  }
  return {
      .features = example_.features.pack(std::move(features)),
      .weights = example_.weights.pack(std::move(weights)),
      .inputs = std::move(inputs)};
}

ExportExample ResizedExamples::with_batch_size(int64_t size) const {
  std::vector<int64_t> sizes = sizes_;
  for (int64_t& each : sizes) {
    each = (each * size + sizes_[0] - 1) / sizes_[0];
  }
  return at(sizes);
}

}  // namespace tessera::exporting
