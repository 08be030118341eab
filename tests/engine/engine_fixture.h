// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/embedding_engine.h>
#include <tessera/optim/optimizers/sgd.h>

#include "tests/features/feature_builders.h"

namespace tessera {

/// The timeout of calls that a test expects to fail.
inline constexpr std::chrono::milliseconds kSoon(50);

// Initial values that count up: row i has i * dim, i * dim + 1, ...
inline at::Tensor count_up(const at::Tensor& ids, int64_t dim) {
  return (ids.unsqueeze(1) * dim + at::arange(dim)).to(at::kFloat);
}

inline TablePtr counting_table(
    const std::string& name,
    int64_t vocabulary_size,
    int64_t dim,
    Combiner combiner) {
  return make_table(
      {.name = name,
       .vocabulary_size = vocabulary_size,
       .dim = dim,
       .combiner = combiner,
       .initializer = initializers::Callable("count_up", count_up)});
}

// A value for each feature of EngineFixtureTest.
template <class T>
Nest<T> of_features(T watched, T favorited, T friends) {
  return {
      {"watched", std::move(watched)},
      {"favorited", std::move(favorited)},
      {"friends", std::move(friends)}};
}

// The fixture of TensorFlow's tests: three features of two tables.
class EngineFixtureTest : public testing::Test {
 protected:
  TablePtr video_ = counting_table("video", 8, 4, Combiner::kSum);
  TablePtr user_ = counting_table("user", 16, 2, Combiner::kMean);

  Nest<FeatureConfig> configs(int64_t length = 0) const {
    const auto feature = [&](const TablePtr& table, int64_t of_table) {
      return FeatureConfig{
          .table = table, .max_sequence_length = length > 0 ? of_table : 0};
    };
    return of_features(
        feature(video_, 2), feature(video_, 2), feature(user_, 3));
  }

  EmbeddingEngineOptions options() const {
    return {
        .features = configs(),
        .optimizer = optim::SGD{.learning_rate = 0.1},
        .timeout = kSoon};
  }

  static Features batch() {
    return of_features<Feature>(
        test::sparse({{0}, {0, 1}}, 2),
        test::ragged({{0, 1}, {1}}),
        test::sparse({{3}, {0, 1, 2}}, 3));
  }

  static Nest<at::Tensor> ones_like(const Nest<at::Tensor>& activations) {
    std::vector<at::Tensor> ones;
    for (const at::Tensor& activation : activations.flatten()) {
      ones.push_back(at::ones_like(activation));
    }
    return activations.pack(ones);
  }
};

}  // namespace tessera
