// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/nest.h>
#include <tessera/layers/layer.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <type_traits>

namespace tessera {

/// The config of a DotInteraction layer.
struct DotInteractionOptions {
  /// Each feature with itself, too.
  bool self_interaction = false;
  /// The whole matrix, with zeros instead of the upper triangle, rather than the
  /// lower triangle alone: twice the width, no selection.
  bool skip_gather = false;

  bool operator==(const DotInteractionOptions&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("self_interaction", self.self_interaction);
    visit("skip_gather", self.skip_gather);
  }
};
static_assert(std::is_aggregate_v<DotInteractionOptions>);

/// Dot products of all pairs of features, as in DLRM.
///
///   torch::nn::Sequential model(
///       TPUEmbedding(options), DotInteraction(), torch::nn::Linear(351, 1));
///
/// The pairs are the lower triangle row by row: (1, 0), (2, 0), (2, 1), ...;
/// with self_interaction (0, 0), (1, 0), (1, 1), ... A nest's features are in
/// its order.
///
/// The backward pass reads the features, which must not have changed by then.
/// All is computed in the features' dtype, under autocast, too.
///
/// Shapes:  leaves [batch, dim], a feature each, or [batch, n, dim], n features;
///          one such tensor alone will do. Of F features in all the result is
///          [batch, F (F - 1) / 2], with self_interaction [batch, F (F + 1) / 2],
///          with skip_gather [batch, F F].
/// Errors:  c10::ValueError naming the path, for no features and for different
///          batches or dims; c10::TypeError for different dtypes or integers.
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

TORCH_MODULE(DotInteraction);

}  // namespace tessera
