// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tessera {

/// How the gradients of several backward passes before one step() are combined.
enum class Accumulation {
  /// Their sum, as in LibTorch.
  kSum,
  /// Their mean, also for dense weights, as with Keras's gradient_accumulation_steps. The
  /// sum is divided by the number of backward() calls since the last step. If this number
  /// differs between layers, the largest one is used for all gradients.
  kMean
};

/// What step() does if a gradient of a dense weight or of a table is not finite.
enum class NonFinite {
  /// Applies the gradient unchecked.
  kPass,
  /// Discards the tables' gradients, changes no weight, and counts the step in
  /// skipped_steps().
  kSkip,
  /// Raises an error. Nothing is changed.
  kError
};

// snippet: tests/docs/reference_layers_test.cpp CombinedOptions
/// The options of a Combined optimizer.
///
///   Combined optimizer(
///       torch::optim::Adam(model->parameters(), 1e-3),
///       {embedding},
///       {.accumulation = Accumulation::kMean, .non_finite = NonFinite::kSkip});
struct CombinedOptions {
  Accumulation accumulation = Accumulation::kSum;
  NonFinite non_finite = NonFinite::kPass;

  bool operator==(const CombinedOptions&) const = default;
};

// snippet: tests/docs/reference_layers_test.cpp Combined
/// Combines a dense optimizer with the tables of layers that have Apply::kOnStep. One
/// step() updates them all.
///
///   Combined optimizer(
///       torch::optim::Adam(model->parameters(), 1e-3), {embedding});
///   optimizer.zero_grad();
///   for (const Features& micro_batch : micro_batches) {
///     loss_of(micro_batch).backward();
///   }
///   optimizer.clip_grad_norm_(1.0);
///   optimizer.step();  // dense weights and tables
///
/// N micro-batches give the same update as one batch that concatenates them, up to
/// rounding. Only a new key of a key table may differ: each micro-batch decides about the
/// key's admission by itself. Until step(), the tables' gradients are kept as one sum per
/// touched row. The dense optimizer's param groups move into the Combined, so LibTorch's
/// schedulers, add_param_group() and casts of a group's options work on it.
///
/// zero_grad() discards the gradients that wait for step(). Called through a reference to
/// torch::optim::Optimizer, zero_grad() also discards them, but zero_grad(false) does
/// not. A backward() that fails adds nothing to the tables, but it may have written
/// gradients of dense parameters: call zero_grad(). torch::save saves the dense
/// optimizer. Tables and slots are saved with their layers. Gradients that wait for
/// step() are not saved.
///
/// Only one thread at a time may use a Combined. LBFGS is refused, because it calls its
/// closure several times. A layer belongs to one Combined at a time.
class Combined : public torch::optim::Optimizer {
 public:
  /// Errors:  c10::ValueError for a layer whose strategy is not fused with
  ///          Apply::kOnStep, that is listed twice, or whose virtual variable is not in
  ///          the dense optimizer; c10::Error if the layer belongs to another Combined.
  template <class Dense>
  requires std::derived_from<Dense, torch::optim::Optimizer> Combined(
      Dense dense,
      std::vector<TPUEmbedding> layers,
      CombinedOptions options = {})
      : Combined(
            std::make_unique<Dense>(std::move(dense)),
            std::move(layers),
            options) {}
  Combined(
      std::unique_ptr<torch::optim::Optimizer> dense,
      std::vector<TPUEmbedding> layers,
      CombinedOptions options = {});
  Combined(Combined&& other) noexcept;
  ~Combined() override;

  /// Updates dense weights and tables once. If `closure` is set, calls it once before the
  /// update.
  /// Errors:  c10::ValueError for a learning rate or a gradient that is not finite, and
  ///          whatever a callable throws; nothing has changed then. After an error of the
  ///          dense optimizer, no table has changed: call zero_grad().
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Zeros the gradients of dense parameters, and discards the tables' gradients that
  /// wait for step().
  void zero_grad(bool set_to_none = true);

  /// Scales the gradients of dense weights and tables so that their common norm is at most
  /// `max_norm`. Returns the norm before scaling. If this norm is not finite, nothing is
  /// scaled. On a sharded strategy, call sum_gradients() first: the norm covers the tables
  /// of all ranks and the dense weights, whose gradients must be the same on every rank.
  /// Range:   max_norm >= 0; norm_type > 0, infinity included.
  /// Errors:  c10::ValueError for values out of range, or if the norm differs between
  ///          ranks.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0);

  /// The number of steps that NonFinite::kSkip has skipped.
  int64_t skipped_steps() const {
    return skipped_steps_;
  }

  /// Saves the dense optimizer.
  void save(torch::serialize::OutputArchive& output) const override;
  /// Errors:  c10::ValueError unless a Combined with a dense optimizer of the same type
  ///          saved the archive.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Tables;

  auto lend_groups();
  /// The factor for summed gradients: 1 for kSum, 1 / passes for kMean.
  double gradient_factor() const;
  bool is_finite() const;
  double agree_on_norm(double norm, double max_norm) const;
  void scale_dense(double factor);
  /// Refuses calls on a moved-from object, and calls from within step().
  void check_idle(const char* method) const;

  std::unique_ptr<torch::optim::Optimizer> dense_;
  std::vector<Tables> tables_;  // one per layer
  CombinedOptions options_;
  int64_t skipped_steps_ = 0;
  bool is_stepping_ = false;
};

}  // namespace tessera
