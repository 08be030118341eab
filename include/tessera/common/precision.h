// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// The dtype in which dense layers multiply matrices and keep activations in between.
/// Weights, their gradients and optimizers, tables, losses, sums over ranks and the
/// statistics of batch normalization are float32 with both.
enum class Precision : uint8_t { kFloat32, kBFloat16 };

// snippet: tests/docs/reference_training_test.cpp PrecisionScope
/// Sets the precision for the dense layers that this thread runs while the scope exists.
///
///   at::Tensor scores;
///   {
///     const PrecisionScope scope(Precision::kBFloat16);
///     scores = model->forward(batch.features).squeeze(1).to(torch::kFloat);
///   }
///   torch::binary_cross_entropy_with_logits(scores, batch.click).backward();
///
/// It is LibTorch's autocast for the CPU, so it also holds for torch::nn. A backward pass
/// belongs outside of it. Inside of it, an autocast around it does not count.
/// make_train_step() makes a scope from TrainStepOptions::precision.
///
/// One warning says if the processor has no instructions for bfloat16. Then a step of a
/// large model took 3.5 times as long as in float32 with AVX-512, and 20 to 40 times with
/// AVX2.
/// Source:  torch.autocast.
class [[nodiscard]] PrecisionScope {
 public:
  /// Unset: the scope changes nothing.
  explicit PrecisionScope(std::optional<Precision> precision);
  ~PrecisionScope();
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;

 private:
  bool is_active_;
  bool was_enabled_;
  bool was_caching_;
  int8_t previous_dtype_;
};

/// The precision of a dtype policy in a config of Keras: "float32", "mixed_bfloat16", or
/// the JSON of a DTypePolicy.
/// Errors:  c10::ValueError for other policies, such as mixed_float16, whose small gradients
///          become 0 without a scaled loss.
/// Source:  keras.dtype_policies.DTypePolicy.
Precision precision_from_keras(const Json& policy);

}  // namespace tessera
