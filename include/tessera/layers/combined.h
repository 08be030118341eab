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

/// What several backward passes before one step() make of their gradients.
enum class Accumulation {
  /// Their sum, as LibTorch does.
  kSum,
  /// Their mean, dense weights too: Keras's gradient_accumulation_steps. The sum
  /// is divided by the number of backward() calls since the last step; of
  /// several layers, the one that most of them reached counts.
  kMean
};

/// What step() does when a gradient, dense or of a table, is not finite.
enum class NonFinite {
  /// Applies it; nothing is checked.
  kPass,
  /// Discards the tables' gradients, changes nothing, counts.
  kSkip,
  /// Raises; nothing is changed.
  kError
};

/// How a Combined steps.
struct CombinedOptions {
  Accumulation accumulation = Accumulation::kSum;
  NonFinite non_finite = NonFinite::kPass;

  bool operator==(const CombinedOptions&) const = default;
};

/// A dense optimizer and the tables of layers with Apply::kOnStep, stepped as
/// one.
///
///   Combined optimizer(
///       torch::optim::Adam(model->parameters(), 1e-3), {model->embedding});
///   optimizer.zero_grad();
///   for (auto& micro_batch : micro_batches) {
///     loss(model, micro_batch).backward();
///   }
///   optimizer.clip_grad_norm_(1.0);
///   optimizer.step();  // dense weights and tables
///
/// N micro-batches are one batch of their concatenation, to rounding. The
/// tables' gradients wait as one sum per touched row. The dense optimizer's
/// param groups move to this one, so that LibTorch's schedulers,
/// add_param_group and option casts reach it. zero_grad() discards what waits;
/// so does the zero_grad() of a base reference, but not its zero_grad(false). A
/// backward() that fails adds nothing to the tables, but may have written dense
/// gradients: call zero_grad(). torch::save keeps the dense optimizer; tables
/// and slots are saved with their layers, and what waits is not saved.
///
/// One thread at a time. LBFGS, which calls its closure several times, is
/// refused. A layer belongs to one Combined at a time.
class Combined : public torch::optim::Optimizer {
 public:
  /// Errors:  c10::ValueError for a layer that is not an engine under
  ///          Apply::kOnStep, or listed twice, or whose virtual variable the dense optimizer
  ///          lacks; c10::Error when another Combined has the layer.
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

  /// One update of everything. Calls `closure` first, once.
  /// Errors:  c10::ValueError from a learning rate or a gradient that is not
  ///          finite, and what a callable throws: nothing has changed. What the
  ///          dense optimizer throws: no table has changed; call zero_grad().
  at::Tensor step(LossClosure closure = nullptr) override;

  void zero_grad(bool set_to_none = true);

  /// Scales all gradients, dense and of tables, so that their norm together is
  /// at most `max_norm`, and returns the norm before. One that is not finite
  /// scales nothing. On shards, after sum_gradients(): the norm is that of the
  /// tables of all ranks, and of dense gradients that are the same on each.
  /// Range:   max_norm >= 0; norm_type > 0, infinity too.
  /// Errors:  c10::ValueError when they are not.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0);

  /// How many steps NonFinite::kSkip has left out.
  int64_t skipped_steps() const {
    return skipped_steps_;
  }

  /// The dense optimizer's own.
  void save(torch::serialize::OutputArchive& output) const override;
  /// Errors:  c10::ValueError when no Combined with a dense optimizer of this
  ///          type saved it.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  class Lease;
  struct Tables;

  /// What sums are multiplied by: 1, or 1 / passes.
  double gain() const;
  bool is_finite() const;
  double agree_on_norm(double norm, double max_norm) const;
  void scale_dense(double factor);
  /// Refuses calls on a moved-from object and from within step().
  void check_idle(const char* method) const;

  std::unique_ptr<torch::optim::Optimizer> dense_;
  std::vector<Tables> tables_;  // one per layer
  CombinedOptions options_;
  int64_t skipped_steps_ = 0;
  bool is_stepping_ = false;
};

}  // namespace tessera
