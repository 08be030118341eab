// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/nest.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// The config of a DotInteraction layer.
struct DotInteractionOptions {
  /// Whether to include the product of each feature with itself.
  bool self_interaction = false;
  /// Whether to return the whole matrix, with zeros in the upper triangle, instead of the
  /// lower triangle alone. The result is about twice as wide, but its entries need not be
  /// gathered from the matrix.
  bool skip_gather = false;

  bool operator==(const DotInteractionOptions&) const = default;

  TESSERA_FIELDS(self_interaction, skip_gather)
};

// snippet: tests/docs/reference_layers_test.cpp DotInteractionImpl
/// The dot products of all pairs of features, as in DLRM.
///
///   torch::nn::Sequential model(
///       TPUEmbedding(options),  // three features: 3 pairs, and each with itself
///       DotInteraction(DotInteractionOptions{.self_interaction = true}),
///       torch::nn::Linear(6, 1));
///   const auto scores = model->forward(features);
///
/// The pairs are the lower triangle row by row: (1, 0), (2, 0), (2, 1), ... With
/// self_interaction they are (0, 0), (1, 0), (1, 1), ... Features are numbered in the
/// order of the nest.
///
/// A feature may have one row beside features of many rows, such as a vector of a user
/// beside those of candidates. It counts for all rows. If such features come first in the
/// nest, their products with each other are computed once, without gradients and in float32
/// on the CPU.
///
/// The backward pass reads the features, so don't change them in place before it. The
/// computation uses the features' dtype, also under autocast.
///
/// Shapes:  A leaf [batch, dim] is one feature, a leaf [batch, n, dim] is n features, and
///          batch may be 1 in some of the leaves. The nest may be a single tensor. For F
///          features in total, the result is [batch, F (F - 1) / 2], with
///          self_interaction [batch, F (F + 1) / 2], and with skip_gather [batch, F F].
/// Errors:  c10::ValueError naming the path, for an empty nest and for different batch
///          sizes or dims; c10::TypeError for different dtypes or integers.
/// Source:  tfrs.layers.feature_interaction.DotInteraction; Naumov et al. 2019.
class DotInteractionImpl
    : public LayerImpl<DotInteractionImpl, DotInteractionOptions> {
 public:
  static constexpr const char* kClassName = "DotInteraction";
  using LayerImpl::LayerImpl;

  at::Tensor forward(const Nest<at::Tensor>& features);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;
};

using DotInteraction = LayerHolder<DotInteractionImpl>;

}  // namespace tessera
