// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/sampling_probability.h>

#include <tessera/layers/layer_json.h>  // defines get_config()

#include "packages/models/src/model_checks.h"
#include "src/common/check.h"
#include "src/common/random_key.h"
#include "src/common/tensor_text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace {

// The position of an id in the flat arrays.
class Buckets {
 public:
  explicit Buckets(const SamplingProbabilityOptions& options)
      : count_(options.num_buckets) {}

  int64_t operator()(int64_t id, int64_t hash) const {
    // Mixing the bits gives unrelated buckets to nearby ids and to the arrays.
    const uint64_t bits = mix_bits(
        static_cast<uint64_t>(id) +
        (static_cast<uint64_t>(hash) + 1) * 0x9E3779B97F4A7C15U);
    return hash * count_ +
        static_cast<int64_t>(bits % static_cast<uint64_t>(count_));
  }

 private:
  int64_t count_;
};

void check_ids(const at::Tensor& ids) {
  TESSERA_CHECK_VALUE(
      ids.defined() && ids.dim() == 1 && ids.device().is_cpu(),
      "[SamplingProbability] ids must have shape [batch] and be on the CPU, but got {}. Call flatten() and to(torch::kCPU).",
      ids.defined() ? c10::str(ids.sizes(), " on ", ids.device())
                    : "an undefined tensor");
  check_integers(ids, "ids", "SamplingProbability");
}

}  // namespace

SamplingProbabilityImpl::SamplingProbabilityImpl(
    SamplingProbabilityOptions options)
    : LayerImpl(std::move(options)) {
  const SamplingProbabilityOptions& checked = this->options();
  constexpr int64_t kMaxElements = int64_t{1} << 40;  // 12 TiB
  TESSERA_CHECK_VALUE(
      checked.num_buckets >= 1 && checked.num_hashes >= 1 &&
          checked.num_buckets <= kMaxElements / checked.num_hashes,
      "[SamplingProbability] num_buckets and num_hashes must be >= 1 and their product at most 2^40, but got {} and {}. Use fewer buckets or hashes.",
      checked.num_buckets,
      checked.num_hashes);
  TESSERA_CHECK_VALUE(
      checked.learning_rate > 0.0 && checked.learning_rate <= 1.0,
      "[SamplingProbability] learning_rate must be in (0, 1], but got {}. Set it to the share that a new gap has in the average.",
      checked.learning_rate);
  SamplingProbabilityImpl::reset();
}

void SamplingProbabilityImpl::reset() {
  const auto shape = {options().num_hashes, options().num_buckets};
  if (named_buffers(/*recurse=*/false).contains("seen")) {
    seen_.zero_();
    last_position_.zero_();
    average_gap_.zero_();
    return;
  }
  seen_ = register_buffer("seen", at::zeros({}, at::kLong));
  last_position_ =
      register_buffer("last_position", at::zeros(shape, at::kLong));
  average_gap_ = register_buffer("average_gap", at::zeros(shape, at::kFloat));
}

void SamplingProbabilityImpl::check_buffers() const {
  const auto matches = [&](const at::Tensor& buffer, at::ScalarType dtype) {
    const std::vector<int64_t> shape{
        options().num_hashes, options().num_buckets};
    return buffer.scalar_type() == dtype && buffer.is_contiguous() &&
        buffer.device().is_cpu() && buffer.sizes() == shape;
  };
  TESSERA_CHECK_VALUE(
      matches(last_position_, at::kLong) && matches(average_gap_, at::kFloat) &&
          seen_.scalar_type() == at::kLong && seen_.numel() == 1,
      "[SamplingProbability] the buffers must be on the CPU: last_position int64 and average_gap float32, both contiguous and of shape [num_hashes, num_buckets] = [{}, {}], and seen a single int64, but got last_position: {}, average_gap: {} and seen: {}. Load an archive that was saved with the same options, and do not convert the layer to another dtype or device.",
      options().num_hashes,
      options().num_buckets,
      describe(last_position_),
      describe(average_gap_),
      describe(seen_));
}

void SamplingProbabilityImpl::learn(std::span<const int64_t> ids) {
  const Buckets bucket(options());
  const auto rate = static_cast<float>(options().learning_rate);
  int64_t* position = last_position_.mutable_data_ptr<int64_t>();
  float* gap = average_gap_.mutable_data_ptr<float>();
  int64_t& seen = *seen_.mutable_data_ptr<int64_t>();
  for (const int64_t id : ids) {
    ++seen;
    for (int64_t hash = 0; hash < options().num_hashes; ++hash) {
      const int64_t at = bucket(id, hash);
      const auto newest = static_cast<float>(seen - position[at]);
      gap[at] =
          position[at] == 0 ? newest : gap[at] + rate * (newest - gap[at]);
      position[at] = seen;
    }
  }
}

at::Tensor SamplingProbabilityImpl::estimate(
    std::span<const int64_t> ids) const {
  const Buckets bucket(options());
  const int64_t* position = last_position_.const_data_ptr<int64_t>();
  const float* gap = average_gap_.const_data_ptr<float>();
  const auto unseen = static_cast<float>(*seen_.const_data_ptr<int64_t>() + 1);
  at::Tensor probability =
      at::empty({static_cast<int64_t>(ids.size())}, at::kFloat);
  float* out = probability.mutable_data_ptr<float>();
  for (const int64_t id : ids) {
    float longest = 1.0F;
    for (int64_t hash = 0; hash < options().num_hashes; ++hash) {
      const int64_t at = bucket(id, hash);
      longest = std::max(longest, position[at] == 0 ? unseen : gap[at]);
    }
    *out++ = 1.0F / longest;
  }
  return probability;
}

Nest<PartialShape> SamplingProbabilityImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  TESSERA_CHECK_VALUE(
      input_shapes.is_leaf() && input_shapes.leaf().size() == 1,
      "[SamplingProbability] expected ids of shape [batch], but got {}. Flatten the ids.",
      input_shapes.is_leaf() ? to_string(input_shapes.leaf())
                             : std::string(input_shapes.kind()));
  return input_shapes;
}

at::Tensor SamplingProbabilityImpl::forward(const at::Tensor& ids) {
  check_ids(ids);
  build_on_first_call(ids);
  check_buffers();
  const at::Tensor int64_values = ids.to(at::kLong).contiguous();
  const std::span<const int64_t> values(
      int64_values.const_data_ptr<int64_t>(),
      static_cast<size_t>(int64_values.size(0)));
  if (is_training()) {
    learn(values);
  }
  return estimate(values);
}

}  // namespace tessera
