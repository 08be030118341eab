// SPDX-License-Identifier: Apache-2.0
#pragma once

// A model with an EmbeddingEngineModule.

#include <tessera/layers/embedding_engine_module.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::engine_module {

using test::bytes_of;
using test::int64s;
using test::load_bytes;
using test::ragged;

inline Nest<FeatureConfig> make_features() {
  const auto table = [](const char* name, int64_t rows) {
    return FeatureConfig{.table = test::plain_table(name, rows, 2)};
  };
  return {{"user", table("users", 9)}, {"item", table("items", 7)}};
}

inline EmbeddingEngineOptions make_options(uint64_t seed = 0) {
  return {
      .features = make_features(),
      .optimizer = optim::Adagrad{.learning_rate = 0.5},
      .seed = seed};
}

inline Features batch(int64_t step = 0) {
  return {
      {"user", int64s({step % 9, 3, 4})},
      {"item", ragged({{step % 7, 2}, {}, {5, 5, 1}})}};
}

struct RankerImpl : torch::nn::Cloneable<RankerImpl> {
  using Forward = std::function<Nest<at::Tensor>(
      EmbeddingEngineModule& engine,
      const Features& features)>;

  explicit RankerImpl(uint64_t seed = 0, Forward lookup = {})
      : seed_(seed), lookup_(std::move(lookup)) {
    RankerImpl::reset();
  }
  void reset() override {
    engine =
        register_module("engine", EmbeddingEngineModule(make_options(seed_)));
    torch::manual_seed(seed_);
    tower = register_module("tower", torch::nn::Linear(4, 1));
  }

  at::Tensor score(const Nest<at::Tensor>& activations) {
    return tower->forward(
        at::cat({activations["user"], activations["item"]}, 1));
  }
  at::Tensor forward(const Features& features) {
    return score(
        lookup_ ? lookup_(engine, features)
                : engine->embedding_lookup(features));
  }

  uint64_t seed_;
  Forward lookup_;
  EmbeddingEngineModule engine{nullptr};
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(Ranker);

inline void train(EmbeddingEngine& engine, int64_t begin, int64_t end) {
  for (int64_t step = begin; step < end; ++step) {
    engine.enqueue(batch(step));
    const auto activations = engine.dequeue();
    const at::Tensor gradient =
        at::full_like(activations["user"], 0.25 + static_cast<double>(step));
    engine.apply_gradients({{"user", gradient}, {"item", gradient}});
  }
}

}  // namespace tessera::engine_module
