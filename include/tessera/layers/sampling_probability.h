// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/layer.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <span>
#include <type_traits>

namespace tessera {

/// The config of a SamplingProbability layer.
struct SamplingProbabilityOptions {
  /// The size of each hashed array. Choose a few times the number of distinct ids.
  int64_t num_buckets = 1 << 20;
  /// Arrays with a hash of their own. More make it rarer that two ids share all
  /// their buckets and pass for one frequent id.
  int64_t num_hashes = 3;
  /// The weight of the newest gap in a moving average. Smaller is steadier, and
  /// slower to follow a changing stream.
  double learning_rate = 0.01;

  bool operator==(const SamplingProbabilityOptions&) const = default;

  static void visit_fields(auto& self, auto visit) {
    visit("num_buckets", self.num_buckets);
    visit("num_hashes", self.num_hashes);
    visit("learning_rate", self.learning_rate);
  }
};
static_assert(std::is_aggregate_v<SamplingProbabilityOptions>);

/// Estimates how likely each id is to come next in a stream, from the stream, in
/// constant memory: for Retrieval, where nobody has counted the candidates.
///
///   SamplingProbability estimate;
///   batch.candidate_sampling_probability = estimate->forward(ids);
///
///   gap = position - position of the id before
///   average gap = (1 - learning_rate) * average gap + learning_rate * gap
///   probability = 1 / the largest average gap over the arrays
///
/// Positions count ids, not batches, so an id may be more than once in a batch;
/// the first gap is counted from the start of the stream. In eval() nothing is
/// learnt, and an id that was never seen gets 1 / (ids seen + 1). The arrays are
/// buffers: they are saved and loaded with the model.
///
/// Where the whole data is at hand, exact shares (counts / total) are better.
///
/// Shapes:  [batch] int32 or int64 gives [batch] float32, in (0, 1].
/// Errors:  c10::ValueError or TypeError for another shape, dtype or device.
/// Source:  Yi et al. 2019, algorithm 2, doi:10.1145/3298689.3346996.
class SamplingProbabilityImpl
    : public LayerImpl<SamplingProbabilityImpl, SamplingProbabilityOptions> {
 public:
  static constexpr const char* kClassName = "SamplingProbability";

  /// Errors:  c10::ValueError unless num_buckets and num_hashes are >= 1 and
  ///          learning_rate is in (0, 1].
  explicit SamplingProbabilityImpl(SamplingProbabilityOptions options = {});

  /// Forgets the stream.
  void reset() override;
  at::Tensor forward(const at::Tensor& ids);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 private:
  void check_buffers() const;
  void learn(std::span<const int64_t> ids);
  at::Tensor estimate(std::span<const int64_t> ids) const;

  at::Tensor seen_;  // [] int64, ids so far
  at::Tensor last_position_;  // [num_hashes, num_buckets] int64, 0: never
  at::Tensor average_gap_;  // [num_hashes, num_buckets] float32
};

TORCH_MODULE(SamplingProbability);

}  // namespace tessera
