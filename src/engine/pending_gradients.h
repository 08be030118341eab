// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/gradient_accumulator.h"
#include "src/engine/table_store.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// The gradients that backward passes under Apply::kOnStep collect for the next step:
/// one sum per touched row, however many passes there are.
class PendingGradients {
 public:
  /// `virtual_variable` shows whether the gradients were zeroed. Code that zeroes its
  /// gradient discards the collected gradients.
  PendingGradients(
      std::shared_ptr<TableStore> store,
      at::Tensor virtual_variable);

  /// The claim of the optimizer that applies the gradients. Only one can exist.
  struct Claim {};
  /// Errors:  c10::Error when another optimizer has claimed them.
  std::shared_ptr<Claim> claim();
  bool is_claimed() const {
    return !claim_.expired();
  }

  /// Discards the collected gradients if the gradient of the virtual variable has been
  /// zeroed. Called at the first node of a backward pass and at a step.
  void discard_if_zeroed();

  /// Adds the gradients of one backward pass.
  /// Errors:  c10::ValueError, and c10::Error from within prepare(); nothing is
  ///          changed.
  void add(const std::vector<LookupGradients>& lookups);

  const at::Tensor& virtual_variable() const {
    return virtual_variable_;
  }
  /// The number of backward passes since the last step or discard().
  int64_t passes() const;
  /// The p-norm of all sums together, over all ranks. NaN if any sum is NaN.
  double norm(double p) const;
  void scale(double factor);
  void discard();

  /// Computes what apply() needs, with every gradient multiplied by `factor`.
  /// Errors:  c10::ValueError, also for gradients that the layer refuses because they are
  ///          not finite, or what a callable throws; nothing is changed.
  void prepare(double factor);
  /// Called between prepare() and apply(). If the tables are sharded, waits until all
  /// ranks have called it.
  /// Errors:  `error`, or another rank's.
  void confirm(const std::exception_ptr& error) {
    store_->confirm(error, passes());
  }
  /// The values of all ranks, in order of rank. All must pass the same `options`.
  std::vector<double> gather(double value, uint64_t options) {
    return store_->gather(value, options);
  }
  /// Applies one update, or none if nothing is pending. Can't fail.
  void apply();

 private:
  void check_finite() const;

  std::shared_ptr<TableStore> store_;
  at::Tensor virtual_variable_;
  std::vector<GradientAccumulator> accumulators_;  // one per table
  // The message about the first gradient that the layer refuses, or empty.
  std::string non_finite_;
  TableStore::Update update_;
  std::weak_ptr<Claim> claim_;
  bool is_stepping_ = false;
};

}  // namespace tessera
