// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/layers/tpu_embedding.h>

/// What the benchmarks look up whose lookups overlap with dense work: a sum-pooled feature
/// per table, which has `batch` bags of `bag` random ids each.
struct RandomLookups {
  int64_t tables = 0;
  int64_t rows = 0;
  int64_t dim = 0;
  int64_t batch = 0;
  int64_t bag = 0;

  tessera::Nest<tessera::FeatureConfig> configs() const;
  tessera::Features draw() const;
};

at::Tensor sum_of(const tessera::Nest<at::Tensor>& activations);

/// A matrix product of the size that takes `ms`.
class DenseWork {
 public:
  explicit DenseWork(double ms);
  void operator()() const;

 private:
  static constexpr int64_t kSize = 512;
  at::Tensor a_ = at::randn({kSize, kSize});
  at::Tensor b_;
};

/// The median of `steps` calls of train(activations), with prefetch() of the batches.
double prefetched_ms(
    int64_t steps,
    tessera::TPUEmbedding& layer,
    const std::function<tessera::Features()>& next,
    const std::function<void(const tessera::Nest<at::Tensor>&)>& train);
