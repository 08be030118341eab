// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/tessera.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The config of a ClickModel, which is also its JSON.
struct ClickModelOptions {
  /// All tables must have the same dim.
  tessera::Nest<tessera::FeatureConfig> features = {};
  std::optional<tessera::optim::OptimizerSpec> optimizer = {};
  uint64_t seed = 0;
  /// How features interact: "dlrm" for dot products of all pairs, or "dcn" for low-rank
  /// crosses (DCN-v2).
  std::string interaction = "dlrm";
  /// The number of dense inputs per example. 0: the model has no bottom tower.
  int64_t num_dense = 13;
  /// The sizes of the hidden layers before the interaction, and after it.
  std::vector<int64_t> bottom_units = {64};
  std::vector<int64_t> top_units = {64, 32};
  /// Used by "dcn" only.
  int64_t cross_layers = 3;
  int64_t projection_dim = 32;

  bool operator==(const ClickModelOptions&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("features", self.features);
    visit("optimizer", self.optimizer);
    visit("seed", self.seed);
    visit("interaction", self.interaction);
    visit("num_dense", self.num_dense);
    visit("bottom_units", self.bottom_units);
    visit("top_units", self.top_units);
    visit("cross_layers", self.cross_layers);
    visit("projection_dim", self.projection_dim);
  }
};

/// DLRM, or DCN-v2 in the form of MLPerf's DLRM benchmark. A bottom tower converts the
/// dense inputs to one more embedding, all embeddings interact, and a top tower computes
/// the logit.
///
/// Shapes:  dense [batch, num_dense], which may be undefined if num_dense is 0; logits [batch].
/// Source:  Naumov et al. 2019; Wang et al. 2020.
class ClickModelImpl
    : public tessera::LayerImpl<ClickModelImpl, ClickModelOptions> {
 public:
  static constexpr const char* kClassName = "ClickModel";

  explicit ClickModelImpl(ClickModelOptions options);

  torch::Tensor forward(
      const tessera::Features& features,
      const torch::Tensor& dense);

  void reset() override;

  const tessera::TPUEmbedding& embedding() const {
    return embedding_;
  }

 private:
  tessera::TPUEmbedding embedding_{nullptr};
  // These two exist only with dense inputs.
  torch::nn::BatchNorm1d normalize_{nullptr};
  tessera::MLP bottom_{nullptr};
  tessera::DotInteraction dots_{nullptr};  // for "dlrm"
  tessera::MultiLayerDCN crosses_{nullptr};  // for "dcn"
  tessera::MLP top_{nullptr};
};

TORCH_MODULE(ClickModel);
