// SPDX-License-Identifier: Apache-2.0
#include "tests/benchmarks/random_lookups.h"

#include "tests/benchmarks/torch_benchmark.h"

#include <tessera/layers/prefetch.h>

using namespace tessera;

Nest<FeatureConfig> RandomLookups::configs() const {
  Nest<FeatureConfig>::List features;
  for (int64_t i = 0; i < tables; ++i) {
    features.emplace_back(FeatureConfig{
        .table = make_table(
            {.vocabulary_size = rows,
             .dim = dim,
             .combiner = Combiner::kSum,
             .initializer = initializers::Constant{0.01}})});
  }
  return Nest<FeatureConfig>::list(std::move(features));
}

Features RandomLookups::draw() const {
  Features::List features;
  for (int64_t i = 0; i < tables; ++i) {
    features.emplace_back(RaggedFeature::from_lengths(
        at::randint(rows, {batch * bag}, at::kLong),
        at::full({batch}, bag, at::kLong)));
  }
  return Features::list(std::move(features));
}

at::Tensor sum_of(const Nest<at::Tensor>& activations) {
  at::Tensor sum;
  for (const at::Tensor& activation : activations.flatten()) {
    sum = sum.defined() ? sum + activation.sum() : activation.sum();
  }
  return sum;
}

DenseWork::DenseWork(double ms) {
  constexpr int kTries = 4;
  int64_t columns = 512;
  for (int i = 0; i < kTries; ++i) {
    b_ = at::randn({kSize, columns});
    const double took = median_ms(7, *this);
    columns = std::max<int64_t>(
        16, static_cast<int64_t>(static_cast<double>(columns) * ms / took));
  }
  b_ = at::randn({kSize, columns});
}

void DenseWork::operator()() const {
  at::mm(a_, b_);
}

double prefetched_ms(
    int64_t steps,
    TPUEmbedding& layer,
    const std::function<Features()>& next,
    const std::function<void(const Nest<at::Tensor>&)>& train) {
  std::vector<int> source(steps + 3);
  auto range = prefetch(source, layer, [&](int) { return next(); });
  auto item = range.begin();
  return median_ms(steps, [&] {
    train(item->activations);
    ++item;
  });
}
