// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/nest.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>

namespace tessera {

namespace detail {

/// The config of a Concatenate layer. It has no options.
struct ConcatenateOptions {
  bool operator==(const ConcatenateOptions&) const = default;

  TESSERA_FIELDS()
};

}  // namespace detail

// snippet: tests/docs/reference_layers_test.cpp ConcatenateImpl
/// Concatenates a nest of activations into one matrix, for torch::nn::Sequential.
///
///   torch::nn::Sequential model(
///       TPUEmbedding(options),  // three features of dim 2
///       Concatenate(),
///       torch::nn::Linear(6, 1));
///   const auto scores = model->forward(features);
///
/// Shapes:  leaves [batch, ...] are flattened from dimension 1 on and concatenated in the
///          order of the nest. The result is [batch, sum of widths]. A leaf [1, ...] beside
///          larger ones is repeated. MLP and Cross take the nest itself, and compute the
///          part of such a leaf once.
/// Errors:  c10::ValueError for an empty nest or different batch sizes.
class ConcatenateImpl
    : public LayerImpl<ConcatenateImpl, detail::ConcatenateOptions> {
 public:
  static constexpr const char* kClassName = "Concatenate";
  using LayerImpl::LayerImpl;

  at::Tensor forward(const Nest<at::Tensor>& activations);
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;
};

using Concatenate = LayerHolder<ConcatenateImpl>;

}  // namespace tessera
