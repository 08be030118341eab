// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/gradient_accumulator.h"
#include "src/engine/table_engine.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera {

/// What backward passes under Apply::kOnStep leave for the next step: one sum
/// per touched row, whatever their number.
class PendingGradients {
 public:
  /// `virtual_variable` shows whether the gradients were zeroed: what zeroes
  /// it, from anywhere, discards the pile.
  PendingGradients(
      std::shared_ptr<TableEngine> engine,
      at::Tensor virtual_variable);

  /// Holds a stepping optimizer's claim; only one at a time.
  class Claim;
  /// Errors:  c10::Error when another optimizer has claimed them.
  std::shared_ptr<Claim> claim();
  bool is_claimed() const {
    return !claim_.expired();
  }

  /// At the first node of a backward pass, and at a step: discards the pile of
  /// a gradient that has been zeroed.
  void settle();

  /// The gradients of one backward pass.
  /// Errors:  c10::ValueError, and c10::Error from within prepare(); nothing is
  ///          changed.
  void add(const std::vector<LookupGradients>& lookups);

  const at::Tensor& virtual_variable() const {
    return virtual_variable_;
  }
  /// Backward passes since the last step or discard().
  int64_t passes() const;
  /// The p-norm of all sums together, over all ranks; NaN if one is.
  double norm(double p) const;
  void scale(double factor);
  void discard();

  /// What apply() needs, with every gradient multiplied by `gain`.
  /// Errors:  c10::ValueError, or what a callable throws; nothing is changed.
  void prepare(double gain);
  /// Between prepare() and apply(): on shards, all ranks have come as far.
  /// Errors:  `error`, or another rank's.
  void confirm(const std::exception_ptr& error) {
    engine_->confirm(error, passes());
  }
  /// What each rank has given, in order; all must have the same `options`.
  std::vector<double> gather(double value, uint64_t options) {
    return engine_->gather(value, options);
  }
  /// One update; none when nothing is pending. Can't fail.
  void apply();

 private:
  std::shared_ptr<TableEngine> engine_;
  at::Tensor virtual_variable_;
  std::vector<GradientAccumulator> piles_;  // one per table
  TableEngine::Update update_;
  std::weak_ptr<Claim> claim_;
  bool is_stepping_ = false;
};

class PendingGradients::Claim {};

}  // namespace tessera
