// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <tessera/features/nest.h>

#include <optional>
#include <variant>

namespace tessera {

// snippet: tests/docs/reference_engine_test.cpp SparseFeature
/// A sparse tensor of ids, which are combined over its last dimension.
///
/// The rows of `indices` need not be sorted.
///
///   // Two bags: {1, 9} and {4}.
///   const SparseFeature tags{
///       .indices = torch::tensor({{0, 0}, {0, 1}, {1, 0}}),
///       .values = torch::tensor({1, 9, 4}),
///       .dense_shape = torch::tensor({2, 2})};
///   const auto activations = embedding->forward({{"tags", tags}});
struct SparseFeature {
  at::Tensor indices = {};  // [nnz, rank] int64, rank >= 2
  at::Tensor values = {};  // [nnz] int32 or int64
  at::Tensor dense_shape = {};  // [rank] int64

  /// Makes a feature from a tensor of sparse COO layout, whose values are the ids.
  /// Errors:  c10::TypeError unless `coo` has this layout.
  static SparseFeature from_coo(const at::Tensor& coo);
};

// snippet: tests/docs/reference_engine_test.cpp RaggedFeature
/// Bags of ids of different lengths: bag b holds
/// `values[row_splits[b] : row_splits[b + 1]]`.
///
///   // Three bags: {7, 8}, {} and {9}.
///   const RaggedFeature history{
///       .values = torch::tensor({7, 8, 9}),
///       .row_splits = torch::tensor({0, 2, 2, 3})};
///   const auto activations = embedding->forward({{"history", history}});
struct RaggedFeature {
  at::Tensor values = {};  // [nnz] int32 or int64
  at::Tensor row_splits = {};  // [batch + 1] int32 or int64, from 0 to nnz

  /// Makes a feature from the number of ids in each bag, `lengths [batch]`.
  static RaggedFeature from_lengths(
      at::Tensor values,
      const at::Tensor& lengths);

  /// Makes a feature from the start of each bag, `offsets [batch]`, as
  /// torch::nn::EmbeddingBag takes them. The final nnz is not among them.
  static RaggedFeature from_offsets(
      at::Tensor values,
      const at::Tensor& offsets);
};

/// The ids that a layer looks up: a dense integer tensor, a sparse or a ragged feature.
/// A torch tensor of sparse COO layout counts as a SparseFeature.
using Feature = std::variant<at::Tensor, SparseFeature, RaggedFeature>;

/// The batch of a layer: one feature for each feature config.
using Features = Nest<Feature>;

/// Per-id weights in the nest of the features. A map needs entries only for features
/// with weights. An entry has the kind of its feature, or is a tensor of the flat float32
/// values `[nnz]`. std::nullopt stands for a feature without weights.
using Weights = Nest<std::optional<Feature>>;

}  // namespace tessera
