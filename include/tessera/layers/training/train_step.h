// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera::training {

/// What one batch gave.
struct StepResult {
  /// One number.
  at::Tensor loss = {};
  /// What metrics take; undefined: there is nothing for them.
  at::Tensor predictions = {};
  at::Tensor labels = {};
  at::Tensor weights = {};
  /// In this batch; 0: as many as labels or predictions. The loss of an epoch is
  /// the mean over examples.
  int64_t examples = 0;
  /// Whether the update was left out because the loss was not finite.
  bool is_skipped = false;
};
static_assert(std::is_aggregate_v<StepResult>);

/// What a training step does on shards.
struct TrainStepOptions {
  /// The tables'. On shards the gradients of `dense_parameters` are summed, and
  /// a loss that is not finite on one rank leaves out the update on all.
  Strategy strategy = Strategy::engine();
  /// As dense_parameters(*model) gives them. Needed on shards, and used there only.
  std::optional<std::vector<at::Tensor>> dense_parameters = {};
};
static_assert(std::is_aggregate_v<TrainStepOptions>);

/// Errors:  c10::ValueError on shards without dense_parameters.
void validate(const TrainStepOptions& options);

/// What a function of a batch may return: a StepResult, or the loss alone.
inline StepResult to_step_result(StepResult result) {
  return result;
}
inline StepResult to_step_result(at::Tensor loss) {
  return {.loss = std::move(loss)};
}

/// Whether the loss is finite.
/// Errors:  c10::ValueError when it is undefined or not one real number.
bool check_loss(const StepResult& result);

/// zero_grad(), backward() and step(), unless the loss is not finite: then
/// nothing is changed, tables neither, and `is_skipped` is set.
/// Errors:  as check_loss() and validate(); nothing is changed.
void apply_update(
    torch::optim::Optimizer& optimizer,
    StepResult& result,
    const TrainStepOptions& options = {});

/// The usual training step, for fit() or for a loop of one's own:
///
///   auto step = make_train_step(optimizer, [&](const Batch& batch) {
///     const auto scores = model->forward(batch.features);
///     return StepResult{
///         .loss = torch::binary_cross_entropy_with_logits(scores, batch.click),
///         .predictions = scores,
///         .labels = batch.click};
///   });
///   for (const auto& batch : batches) {
///     total += step(batch).loss.item<double>();
///   }
///
/// `loss_of` gives a StepResult, or the loss alone. `optimizer`, any of
/// torch::optim or a Combined, must outlive the step.
/// Errors:  as validate().
template <class LossOf>
auto make_train_step(
    torch::optim::Optimizer& optimizer,
    LossOf loss_of,
    TrainStepOptions options = {}) {
  validate(options);
  return [&optimizer,
          loss_of = std::move(loss_of),
          options = std::move(options)](auto&& batch) mutable -> StepResult {
    StepResult result =
        to_step_result(loss_of(std::forward<decltype(batch)>(batch)));
    apply_update(optimizer, result, options);
    return result;
  };
}

}  // namespace tessera::training
