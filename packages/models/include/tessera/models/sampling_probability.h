// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace tessera {

/// The config of a SamplingProbability layer.
struct SamplingProbabilityOptions {
  /// The size of each hashed array. Choose a few times the number of distinct ids.
  int64_t num_buckets = 1 << 20;
  /// The number of arrays, each with its own hash function. Two ids that share all their
  /// buckets look like one frequent id. With more arrays, this is rarer.
  int64_t num_hashes = 3;
  /// The weight of the newest gap in a moving average. A smaller value gives more stable
  /// estimates, which follow a changing stream more slowly.
  double learning_rate = 0.01;

  bool operator==(const SamplingProbabilityOptions&) const = default;

  TESSERA_FIELDS(num_buckets, num_hashes, learning_rate)
};

// snippet: tests/docs/reference_layers_test.cpp SamplingProbabilityImpl
/// Estimates from a stream of ids how likely each id comes next, in constant memory. Use
/// it for Retrieval if the candidates have not been counted.
///
///   SamplingProbability estimate(
///       SamplingProbabilityOptions{.num_buckets = 1 << 16});
///   RetrievalBatch batch{.candidate_ids = ids};
///   batch.candidate_sampling_probability = estimate->forward(ids);
///   const auto loss = retrieval->forward(users, movies, batch);
///
///   gap = position - previous position of the same id
///   average gap = (1 - learning_rate) * average gap + learning_rate * gap
///   probability = 1 / the largest average gap over the arrays
///
/// Positions count ids, not batches, so an id may occur several times in a batch. The
/// first gap of an id is counted from the start of the stream. In eval() the arrays do
/// not change, and an id that was never seen gets 1 / (ids seen + 1). The arrays are
/// buffers: they are saved and loaded with the model.
///
/// If all data is available, exact shares (counts / total) are better.
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

  /// Resets the arrays to the start of a stream.
  void reset() override;
  at::Tensor forward(const at::Tensor& ids);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 private:
  void check_buffers() const;
  void learn(std::span<const int64_t> ids);
  at::Tensor estimate(std::span<const int64_t> ids) const;

  at::Tensor seen_;  // [] int64, the number of ids so far
  at::Tensor last_position_;  // [num_hashes, num_buckets] int64, 0: none
  at::Tensor average_gap_;  // [num_hashes, num_buckets] float32
};

using SamplingProbability = LayerHolder<SamplingProbabilityImpl>;

}  // namespace tessera
