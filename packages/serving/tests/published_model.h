// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>
#include <tessera/features/feature.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers.h>
#include <tessera/serving/reader.h>
#include <tessera/tables/table_config.h>

#include "tests/temporary_folder.h"
#include "tests/test_util.h"

namespace tessera::test {

/// A batch of one feature, as the layer and as a Reader take it.
struct PublishedBatch {
  std::vector<int64_t> ids = {};
  std::vector<int64_t> row_splits = {};
  std::vector<float> weights = {};

  serving::FeatureBatch for_reader() const {
    return {.ids = ids, .row_splits = row_splits, .weights = weights};
  }
  Feature for_layer() const;
};

struct PublishedModelOptions {
  Strategy strategy = Strategy::fused();
  at::ScalarType dtype = at::kFloat;
  int64_t movies = 3000;
  int64_t dim = 16;
  int64_t user_capacity = 4096;
  bool has_keys = true;
  optim::OptimizerSpec optimizer = optim::Adagrad{.learning_rate = 0.1};
  Apply apply = Apply::kInBackward;
};

/// A small model with every kind of feature:
///
///   movie    dense, table `movies`
///   watched  ragged with weights, table `movies`, mean
///   session  a sequence of 3, table `movies`
///   word     ragged with weights, table `words`, sqrtn, ids out of range give zeros
///   user     dense keys, table `users` with a default and a padding key
///   friends  ragged keys, table `users`, sum
struct PublishedModel : torch::nn::Module {
  explicit PublishedModel(const PublishedModelOptions& options = {});

  /// Random batches of all features, the same for the same numbers.
  std::map<std::string, PublishedBatch> random_batch(
      std::mt19937_64& random) const;
  /// One update.
  void learn(const std::map<std::string, PublishedBatch>& batch);
  /// Activations in evaluation, by feature.
  std::map<std::string, std::vector<float>> evaluate(
      const std::map<std::string, PublishedBatch>& batch);

  PublishedModelOptions options;
  TPUEmbedding embedding = nullptr;
  torch::nn::Linear head = nullptr;
};

/// The activation of a feature in a published version.
std::vector<float> look_up(
    const serving::Version& version,
    const std::string& feature,
    const PublishedBatch& batch);

/// The memory of this process.
int64_t resident_bytes();

/// Expects the same number of floats with the same bits.
void expect_same_bits(
    std::span<const float> actual,
    std::span<const float> expected);

/// Expects that the version gives the bits that the model gives.
void expect_same_lookups(
    const serving::Version& version,
    PublishedModel& model,
    uint64_t seed);

}  // namespace tessera::test
