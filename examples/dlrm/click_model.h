// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/tessera.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The config of a ClickModel: all that its JSON holds.
struct ClickModelOptions {
  /// Of one dim each.
  tessera::Nest<tessera::FeatureConfig> features = {};
  std::optional<tessera::optim::OptimizerSpec> optimizer = {};
  uint64_t seed = 0;
  /// How features meet: "dlrm", dot products of all pairs, or "dcn", low-rank
  /// crosses (DCN-v2).
  std::string interaction = "dlrm";
  /// Numbers per example, beside the features.
  int64_t num_dense = 13;
  /// Hidden layers below the interaction, and above it.
  std::vector<int64_t> bottom_units = {64};
  std::vector<int64_t> top_units = {64, 32};
  /// Of "dcn".
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

/// DLRM, or DCN-v2 in the form of MLPerf's DLRM benchmark: numbers go through a
/// tower to one more embedding, all embeddings interact, a tower gives the logit.
///
/// Shapes:  dense [batch, num_dense]; the logits [batch].
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
  torch::nn::BatchNorm1d normalise_{nullptr};
  torch::nn::Sequential bottom_{nullptr};
  tessera::DotInteraction dots_{nullptr};  // of "dlrm"
  tessera::MultiLayerDCN crosses_{nullptr};  // of "dcn"
  torch::nn::Sequential top_{nullptr};
};

TORCH_MODULE(ClickModel);
