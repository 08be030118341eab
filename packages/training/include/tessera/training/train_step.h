// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/precision.h>
#include <tessera/common/profile_scope.h>
#include <tessera/engine/strategy.h>
#include <tessera/training/pointers.h>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera::training {

// snippet: tests/docs/reference_training_test.cpp TaskResult
/// One task of a step that learns several.
///
///   const auto loss_of = [&](const Batch& batch) {
///     const auto scores = model->forward(batch.features);  // [batch, 2]
///     TaskResult click{
///         .name = "click",
///         .predictions = scores.select(1, 0),
///         .labels = batch.click};
///     click.loss = torch::binary_cross_entropy_with_logits(
///         click.predictions, click.labels);
///     TaskResult purchase{
///         .name = "purchase",
///         .loss_weight = 0.5,
///         .predictions = scores.select(1, 1),
///         .labels = batch.purchase};
///     purchase.loss = torch::binary_cross_entropy_with_logits(
///         purchase.predictions, purchase.labels);
///     return StepResult{.tasks = {click, purchase}};
///   };
///
/// A TaskMetric measures one of the tasks.
struct TaskResult {
  /// TaskMetric, TaskLoss and Predictions find the task by its name.
  std::string name = {};
  /// A tensor with one number. Undefined: StepResult::loss contains it already.
  at::Tensor loss = {};
  /// The factor of this loss in StepResult::loss.
  double loss_weight = 1.0;
  /// As in StepResult.
  at::Tensor predictions = {};
  at::Tensor labels = {};
  at::Tensor weights = {};
  at::Tensor label_splits = {};
  at::Tensor groups = {};
};

/// The result of a step on one batch.
struct StepResult {
  /// A tensor with one number. Undefined: the sum of loss_weight * loss over the tasks.
  at::Tensor loss = {};
  /// The inputs of the metrics. Undefined: the step has none.
  at::Tensor predictions = {};
  at::Tensor labels = {};
  at::Tensor weights = {};
  /// If the labels are bags of ids, those of example i are
  /// labels[label_splits[i] : label_splits[i + 1]]. Undefined: the labels of example i are
  /// row i.
  at::Tensor label_splits = {};  // [n + 1] int32 or int64
  /// The group of each example, such as its user, for GAUC.
  at::Tensor groups = {};  // [n] int32 or int64
  /// The results of single tasks. A TaskMetric takes its predictions from here.
  std::vector<TaskResult> tasks = {};
  /// The number of examples in this batch. 0: as many as labels or predictions. The loss
  /// of an epoch is the mean over examples.
  int64_t examples = 0;
  /// Whether the update was skipped because the loss was not finite.
  bool is_skipped = false;
  /// Whether fit() continues after this skipped update. See
  /// TrainStepOptions::max_skipped_steps.
  bool is_skip_allowed = false;
};

// snippet: tests/docs/reference_training_test.cpp TrainStepOptions
// snippet: tests/docs/reference_training_test.cpp TrainStepOptions_clipped
/// The options of a training step, which runs backward() and step(). A step whose loss is
/// not finite runs neither.
///
///   auto clipped = make_train_step(
///       optimizer, loss_of, {.max_gradient_norm = 1.0, .max_skipped_steps = 3});
///
/// Steps on several ranks need no options inside of fit(). Your own loop passes the model:
///
///   auto step = make_train_step(optimizer, loss_of, {.model = model});
struct TrainStepOptions {
  /// The model, whose tables have the strategy. Unset: FitOptions::model inside of fit().
  ModelPointer model = {};
  /// The strategy of the tables. If it is sharded, the gradients of dense parameters are
  /// summed over the ranks, and a loss that is not finite on one rank skips the update on
  /// all ranks. Unset: the strategy of `model`, or of fit(). Set it only if gradients
  /// are summed over ranks, but no table is sharded and there is no fit().
  std::optional<Strategy> strategy = {};
  /// Further dense parameters whose gradients are summed over the ranks, if the strategy
  /// is sharded: those that another optimizer trains. The gradients of this optimizer's
  /// own dense parameters are always summed.
  std::vector<at::Tensor> dense_parameters = {};
  /// If false, a parameter that would get a gradient but is not in the optimizer is an
  /// error, and nothing is changed. For example, the optimizer was made before the
  /// parameter existed. Set true if another optimizer trains such parameters.
  bool allow_unoptimized = false;
  /// The precision in which loss_of() runs. Unset: that of a PrecisionScope around the step,
  /// such as the one of FitOptions::precision, and otherwise float32. With kBFloat16, the
  /// weights stay float32, so don't convert the model with to().
  std::optional<Precision> precision = {};
  /// Scales the gradients so that their common Euclidean norm is at most this, > 0. The
  /// norm covers the parameters of the optimizer, and with a Combined also its tables.
  /// Other tables of fused strategies are updated during backward(): limit their gradients
  /// with clip_gradient_max of their optimizer. Unset: no limit.
  std::optional<double> max_gradient_norm = {};
  /// How many steps in a row may skip their update because the loss is not finite. Such
  /// steps count in no metric or mean loss, and give a warning. 0: fit() raises an error
  /// at the first one.
  int64_t max_skipped_steps = 0;
};

/// Errors:  c10::ValueError for options out of range, and for a strategy that is not that
///          of the tables of `model`.
void validate(const TrainStepOptions& options);

/// Converts what a step function returns, a StepResult or only the loss, to a StepResult
/// with a loss.
/// Errors:  c10::ValueError for tasks with equal or empty names, a weight that is not
///          finite, and a task whose loss is not one number.
StepResult to_step_result(StepResult result);
inline StepResult to_step_result(at::Tensor loss) {
  return {.loss = std::move(loss)};
}

namespace detail {

/// Checks the loss function of make_train_step(), as make_pass() checks a step.
template <class LossOf, class Batch>
constexpr bool check_loss_function() {
  constexpr bool is_callable = std::invocable<LossOf&, Batch>;
  static_assert(
      is_callable,
      "[make_train_step] loss_of can't be called with a batch. Pass a function whose only parameter is a batch, such as [&](const Batch& batch) { ... }.");
  if constexpr (is_callable) {
    constexpr bool has_loss =
        requires(std::invoke_result_t<LossOf&, Batch> result) {
      to_step_result(std::move(result));
    };
    static_assert(
        has_loss,
        "[make_train_step] loss_of must return a StepResult or the loss, but returns another type. Return the loss as a tensor with one number, not as a double, or a StepResult.");
    return has_loss;
  }
  return false;
}

}  // namespace detail

/// Whether the loss is finite.
/// Errors:  c10::ValueError beginning with `where` if it is undefined or not one real
///          number.
bool check_loss(
    const StepResult& result,
    const std::string& where = "[check_loss]");

/// Calls zero_grad(), backward() and step(), and clips gradients in between. If the loss is
/// not finite, it instead sets `is_skipped` and changes neither tables nor other weights.
///
/// On several ranks, each call compares checksums of the dense weights. A step of
/// make_train_step() compares them only the first time.
/// Errors:  as check_loss() and validate(), and c10::ValueError for a parameter that would
///          get a gradient but is not in the optimizer, and on all ranks if their dense
///          weights differ. Nothing is changed.
void apply_update(
    torch::optim::Optimizer& optimizer,
    StepResult& result,
    const TrainStepOptions& options = {});

namespace detail {

/// Compares the dense weights of the ranks unless `has_compared`, and sets `has_compared`.
void apply_update(
    torch::optim::Optimizer& optimizer,
    StepResult& result,
    const TrainStepOptions& options,
    bool& has_compared);

/// Errors:  c10::ValueError if the options have another strategy than fit().
void check_step(const TrainStepOptions& options, const Strategy& strategy);

/// Calls `loss_of` in a precision, unset for that around the call.
/// One warning says if the loss has 16 bits.
/// Errors:  c10::ValueError if autocast is on and a parameter of the optimizer has 16 bits.
StepResult with_precision(
    std::optional<Precision> precision,
    const torch::optim::Optimizer& optimizer,
    c10::function_ref<StepResult()> loss_of);

/// Counts the skipped updates of a step.
struct SkippedSteps {
  int64_t in_row = 0;
  int64_t total = 0;

  /// Sets `is_skip_allowed`, and warns.
  void count(StepResult& result, int64_t max_in_row);
};

/// The result of make_train_step().
template <class LossOf>
class TrainStep {
 public:
  // make_pass() checks this type first, because the compiler's errors are shorter there.
  using LossFunction = LossOf;

  TrainStep(
      torch::optim::Optimizer& optimizer,
      LossOf loss_of,
      TrainStepOptions options)
      : optimizer_(optimizer),
        loss_of_(std::move(loss_of)),
        options_(std::move(options)) {}

  StepResult operator()(auto&& batch) {
    StepResult result;
    if constexpr (check_loss_function<LossOf, decltype(batch)>()) {
      result = with_precision(options_.precision, optimizer_, [&] {
        const ProfileScope scope("tessera::forward");
        return to_step_result(loss_of_(std::forward<decltype(batch)>(batch)));
      });
      apply_update(optimizer_, result, options_, has_compared_);
      skipped_.count(result, options_.max_skipped_steps);
    }
    return result;
  }

  /// fit() calls check() before it begins.
  void check(const Strategy& strategy) const {
    check_step(options_, strategy);
  }

 private:
  torch::optim::Optimizer& optimizer_;
  LossOf loss_of_;
  TrainStepOptions options_;
  SkippedSteps skipped_;
  bool has_compared_ = false;  // the weights of the ranks
};

}  // namespace detail

// snippet: tests/docs/reference_training_test.cpp make_train_step
/// Makes the usual training step, for fit() or for your own loop:
///
///   auto step = make_train_step(optimizer, [&](const Batch& batch) {
///     const auto scores = model->forward(batch.features).squeeze(1);
///     return StepResult{
///         .loss = torch::binary_cross_entropy_with_logits(scores, batch.click),
///         .predictions = scores,
///         .labels = batch.click};
///   });
///   double total = 0.0;
///   for (const Batch& batch : batches) {
///     total += step(batch).loss.item<double>();
///   }
///
/// `loss_of` returns a StepResult or only the loss. `optimizer`, which is one of
/// torch::optim or a Combined, must outlive the step. Each step checks that the optimizer
/// has all parameters that get a gradient.
/// Errors:  as validate(). The step has the errors of apply_update().
template <class LossOf>
auto make_train_step(
    torch::optim::Optimizer& optimizer,
    LossOf loss_of,
    TrainStepOptions options = {}) {
  validate(options);
  return detail::TrainStep<LossOf>(
      optimizer, std::move(loss_of), std::move(options));
}

}  // namespace tessera::training
