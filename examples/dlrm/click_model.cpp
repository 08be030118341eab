// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/click_model.h"

#include <utility>

using torch::Tensor;

namespace {

// Registers the class, so that a model can be rebuilt from its JSON.
const bool is_registered = tessera::register_layer<ClickModel>();

}  // namespace

ClickModelImpl::ClickModelImpl(ClickModelOptions options)
    : LayerImpl(std::move(options)) {
  reset();
}

void ClickModelImpl::reset() {
  const ClickModelOptions& config = options();
  TORCH_CHECK_VALUE(
      config.interaction == "dlrm" || config.interaction == "dcn",
      "[ClickModel] interaction must be dlrm or dcn, but got '",
      config.interaction,
      "'. Correct the option.");
  embedding_ = register_module(
      "embedding",
      tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
          .features = config.features,
          .optimizer = config.optimizer,
          .seed = config.seed}));
  const auto features = config.features.flatten();
  const int64_t dim = features.front().table->dim;
  auto count = static_cast<int64_t>(features.size());

  int64_t bottom_width = 0;
  if (config.num_dense > 0) {
    std::vector<int64_t> bottom = config.bottom_units;
    bottom.push_back(dim);
    normalize_ =
        register_module("normalise", torch::nn::BatchNorm1d(config.num_dense));
    bottom_ = register_module(
        "bottom",
        tessera::MLP(tessera::MLPOptions{
            .units = std::move(bottom),
            .final_activation = tessera::Activation::kRelu}));
    bottom_->build(tessera::PartialShape{std::nullopt, config.num_dense});
    bottom_width = dim;
    ++count;
  }

  int64_t width = count * dim;
  if (config.interaction == "dlrm") {
    dots_ = register_module("dots", tessera::DotInteraction());
    width = bottom_width + count * (count - 1) / 2;
  } else {
    crosses_ = register_module(
        "crosses",
        tessera::MultiLayerDCN(tessera::MultiLayerDCNOptions{
            .projection_dim = config.projection_dim,
            .num_layers = config.cross_layers}));
    crosses_->build(tessera::PartialShape{std::nullopt, width});
  }
  std::vector<int64_t> top = config.top_units;
  top.push_back(1);
  top_ = register_module(
      "top", tessera::MLP(tessera::MLPOptions{.units = std::move(top)}));
  top_->build(tessera::PartialShape{std::nullopt, width});
}

// snippet: forward
Tensor ClickModelImpl::forward(
    const tessera::Features& features,
    const Tensor& dense) {
  std::vector<tessera::Nest<Tensor>> embedded;
  std::vector<tessera::Nest<Tensor>> interactions;
  if (!bottom_.is_empty()) {
    // One example has no variance of its own.
    normalize_->train(is_training() && dense.size(0) > 1);
    embedded.emplace_back(bottom_->forward(normalize_->forward(dense)));
  }
  if (!dots_.is_empty()) {
    interactions = embedded;
  }
  for (const Tensor& activation : embedding_->forward(features).flatten()) {
    embedded.emplace_back(activation);
  }
  const auto all = tessera::Nest<Tensor>::list(std::move(embedded));
  interactions.emplace_back(
      dots_.is_empty() ? crosses_->forward(all) : dots_->forward(all));
  return top_->forward(tessera::Nest<Tensor>::list(std::move(interactions)))
      .squeeze(1);
}
// end snippet
