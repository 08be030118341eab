// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/train_step.h>

#include <tessera/common/shorten.h>
#include <tessera/engine/sum_gradients.h>
#include <tessera/layers/combined.h>
#include <torch/optim/optimizer.h>

#include "packages/training/src/merged_metrics.h"
#include "packages/training/src/optimizer_check.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"
#include "src/engine/finite_gradients.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cmath>
#include <set>

namespace tessera::training {

namespace {

void check_task(const TaskResult& task) {
  TESSERA_CHECK_VALUE(
      std::isfinite(task.loss_weight),
      "[StepResult] task '{}': loss_weight must be finite, but got {}. Use 0 to leave the task out.",
      shorten(task.name),
      task.loss_weight);
  TESSERA_CHECK_VALUE(
      !task.loss.defined() ||
          (task.loss.numel() == 1 && task.loss.is_floating_point()),
      "[StepResult] task '{}': the loss must be one floating-point number, but got {}. Take its mean or sum.",
      shorten(task.name),
      describe(task.loss));
}

// Limits the norm of the gradients of an optimizer. The values of a sparse gradient are
// first summed per row.
void clip_gradients(torch::optim::Optimizer& optimizer, double max_norm) {
  if (auto* combined = dynamic_cast<Combined*>(&optimizer)) {
    combined->clip_grad_norm_(max_norm);
    return;
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  double squares = 0.0;
  for (const at::Tensor& parameter : parameters_of(optimizer)) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() || gradient.numel() == 0) {
      continue;
    }
    const bool is_sparse = gradient.layout() == at::kSparse;
    if (is_sparse) {
      gradient = gradient.coalesce();
    }
    gradients.push_back(is_sparse ? gradient._values() : gradient);
    const double norm = at::linalg_vector_norm(
                            gradients.back(),
                            2,
                            {},
                            /*keepdim=*/false,
                            at::kDouble)
                            .item<double>();
    squares += norm * norm;
  }
  // The epsilon is that of LibTorch's clip_grad_norm_. It avoids a division by zero.
  constexpr double kEpsilon = 1e-6;
  const double factor = max_norm / (std::sqrt(squares) + kEpsilon);
  if (std::isfinite(squares) && factor < 1.0) {
    for (at::Tensor& gradient : gradients) {
      gradient.mul_(factor);
    }
  }
}

// Within a RefuseNonFiniteScope, refuses gradients of dense parameters that are not finite.
// While a guard lives, the first layer whose tables backward() would change runs the check
// of the guard before the change.
class DenseParameterGuard {
 public:
  explicit DenseParameterGuard(const torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer) {
    if (RefuseNonFiniteScope::is_active()) {
      scope_.emplace([this] {
        if (!std::exchange(has_checked_, true)) {
          check_gradients(parameters_of(optimizer_), "Nothing was changed.");
        }
      });
    }
  }

  // Checks the gradients if no layer has called the check. Sums over ranks are checked in
  // any case, because they may overflow. A Combined instead has its own check in step().
  void check_before_step(const Strategy& strategy) {
    const bool is_combined =
        dynamic_cast<const Combined*>(&optimizer_) != nullptr;
    if (scope_ && !is_combined && (!has_checked_ || strategy.is_sharded())) {
      check_gradients(
          parameters_of(optimizer_),
          has_checked_ ? "No parameter was changed." : "Nothing was changed.");
    }
  }

 private:
  const torch::optim::Optimizer& optimizer_;
  std::optional<RefuseNonFiniteScope> scope_;
  bool has_checked_ = false;
};

void check_strategies(
    const std::optional<Strategy>& own,
    const Strategy& expected,
    const char* what) {
  TESSERA_CHECK_VALUE(
      !own || ranks_of(*own) == ranks_of(expected),
      "[make_train_step] the strategy of the step is {}, but that of {} is {}{}. {}",
      own ? own->name() : "",
      what,
      expected.name(),
      own && own->is_sharded() && expected.is_sharded()
          ? " over another backend"
          : "",
      expected.is_sharded()
          ? "Leave TrainStepOptions::strategy unset."
          : "Set FitOptions::strategy to that of the step, or leave both unset and set FitOptions::model, if its tables are sharded.");
}

// TrainStepOptions::strategy, or that of the sharded tables of TrainStepOptions::model.
std::optional<Strategy> own_strategy(const TrainStepOptions& options) {
  std::optional<Strategy> of_model;
  if (options.model != nullptr) {
    of_model = sharded_strategy_of(*options.model);
  }
  if (of_model) {
    check_strategies(
        options.strategy, *of_model, "the tables of TrainStepOptions::model");
  }
  return options.strategy ? options.strategy : of_model;
}

// The strategy of the options, of their model, or of the fit() around this step.
Strategy strategy_of(const TrainStepOptions& options) {
  const std::optional<Strategy> own = own_strategy(options);
  if (const ParameterWatch* fit = ParameterWatch::current()) {
    check_strategies(own, fit->strategy(), "fit()");
    return fit->strategy();
  }
  return own.value_or(Strategy::fused());
}

// The parameters whose gradients are summed: the optimizer's, because it must change them
// alike on all ranks, and TrainStepOptions::dense_parameters.
std::vector<at::Tensor> dense_parameters_of(
    const torch::optim::Optimizer& optimizer,
    const TrainStepOptions& options,
    const Strategy& strategy) {
  if (!strategy.is_sharded()) {
    return {};
  }
  std::vector<at::Tensor> all = parameters_of(optimizer);
  const auto& given = options.dense_parameters;
  all.insert(all.end(), given.begin(), given.end());
  std::set<const at::TensorImpl*> seen;
  std::erase_if(all, [&](const at::Tensor& parameter) {
    return !parameter.requires_grad() ||
        !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
  return all;
}

}  // namespace

StepResult to_step_result(StepResult result) {
  std::set<std::string> names;
  const bool has_loss = result.loss.defined();
  for (const TaskResult& task : result.tasks) {
    TESSERA_CHECK_VALUE(
        !task.name.empty() && names.insert(task.name).second,
        "[StepResult] each task must have a name of its own, but got '{}'{}. Set TaskResult::name.",
        shorten(task.name),
        task.name.empty() ? "" : " twice");
    check_task(task);
    if (!has_loss && task.loss.defined()) {
      const at::Tensor loss = task.loss_weight * task.loss;
      result.loss = result.loss.defined() ? result.loss + loss : loss;
    }
  }
  return result;
}

bool check_loss(const StepResult& result, const std::string& where) {
  TESSERA_CHECK_VALUE(
      result.loss.defined(),
      "{} expected a loss, but got an undefined tensor. Return the loss of the batch from the step.",
      where);
  TESSERA_CHECK_VALUE(
      result.loss.numel() == 1 && result.loss.is_floating_point(),
      "{} the loss must be one floating-point number, but got {}. Take its mean or sum.",
      where,
      describe(result.loss));
  return std::isfinite(result.loss.item<double>());
}

void validate(const TrainStepOptions& options) {
  own_strategy(options);
  TESSERA_CHECK_VALUE(
      !options.max_gradient_norm ||
          (std::isfinite(*options.max_gradient_norm) &&
           *options.max_gradient_norm > 0.0),
      "[make_train_step] max_gradient_norm must be finite and > 0, but got {}. Leave it unset for no limit.",
      options.max_gradient_norm.value_or(0.0));
  TESSERA_CHECK_VALUE(
      options.max_skipped_steps >= 0,
      "[make_train_step] max_skipped_steps must be >= 0, but got {}. Set it to 0 if no step may be skipped.",
      options.max_skipped_steps);
}

void detail::check_step(
    const TrainStepOptions& options,
    const Strategy& strategy) {
  check_strategies(own_strategy(options), strategy, "fit()");
}

void apply_update(
    torch::optim::Optimizer& optimizer,
    StepResult& result,
    const TrainStepOptions& options) {
  bool has_compared = false;
  detail::apply_update(optimizer, result, options, has_compared);
}

StepResult detail::with_precision(
    std::optional<Precision> precision,
    const torch::optim::Optimizer& optimizer,
    c10::function_ref<StepResult()> loss_of) {
  const PrecisionScope scope(precision);
  if (at::autocast::is_autocast_enabled(at::kCPU)) {
    for (const at::Tensor& parameter : parameters_of(optimizer)) {
      TESSERA_CHECK_VALUE(
          !c10::isReducedFloatingType(parameter.scalar_type()),
          "[make_train_step] weights must stay float32 in Precision::kBFloat16, but a parameter {} is {}. Don't convert the model with to().",
          parameter.sizes(),
          parameter.scalar_type());
    }
  }
  StepResult result = loss_of();
  if (result.loss.defined() &&
      c10::isReducedFloatingType(result.loss.scalar_type())) {
    TORCH_WARN_ONCE(
        "[make_train_step] the loss is ",
        result.loss.scalar_type(),
        ", which has 2 or 3 decimal digits. Compute it from "
        "predictions.to(torch::kFloat).");
  }
  return result;
}

void detail::apply_update(
    torch::optim::Optimizer& optimizer,
    StepResult& result,
    const TrainStepOptions& options,
    bool& has_compared) {
  // The forward pass has ended, and the weights that an autocast has converted will be old.
  const PrecisionScope no_autocast(Precision::kFloat32);
  at::autocast::clear_cache();
  validate(options);
  const Strategy strategy = strategy_of(options);
  const std::vector<at::Tensor> dense_parameters =
      dense_parameters_of(optimizer, options, strategy);
  const bool is_finite = check_loss(result, "[make_train_step]");
  TESSERA_CHECK_VALUE(
      !is_finite || result.loss.requires_grad(),
      "[make_train_step] the loss has no gradient. Compute it from parameters that require one, outside of NoGradGuard.");
  // The skip is decided here, because backward() already writes to tables.
  RankStep step{.skipped = is_finite ? 0.0 : 1.0};
  if (strategy.is_sharded() && !std::exchange(has_compared, true)) {
    step.checksum = checksum_of(dense_parameters);
  }
  Logs no_metrics;
  step = merge(
      {"[make_train_step] at the first step,"},
      step,
      {},
      *ranks_of(strategy),
      no_metrics);
  result.is_skipped = step.skipped > 0.0;
  if (!result.is_skipped) {
    check_optimizer(
        optimizer, result.loss, options.allow_unoptimized, strategy);
    DenseParameterGuard dense(optimizer);
    {
      const ProfileScope scope("tessera::backward");
      optimizer.zero_grad();
      result.loss.backward();
    }
    distributed::sum_gradients(dense_parameters, strategy);
    const ProfileScope scope("tessera::optimizer_step");
    dense.check_before_step(strategy);
    if (options.max_gradient_norm) {
      clip_gradients(optimizer, *options.max_gradient_norm);
    }
    optimizer.step();
  }
  result.loss = result.loss.detach();
  for (TaskResult& task : result.tasks) {
    task.loss = task.loss.defined() ? task.loss.detach() : task.loss;
  }
}

void detail::SkippedSteps::count(StepResult& result, int64_t max_in_row) {
  if (!result.is_skipped) {
    in_row = 0;
    return;
  }
  ++in_row;
  ++total;
  result.is_skip_allowed = in_row <= max_in_row;
  // Warns about the first, second, fourth, eighth, ... skipped step.
  if (result.is_skip_allowed && (total & (total - 1)) == 0) {
    TORCH_WARN(fmt::format(
        "[make_train_step] the loss of a step is {}, so its update was "
        "skipped. {} were skipped so far. Look for the cause in the data or "
        "lower the learning rate. max_skipped_steps allows {} in a row.",
        number_in_message(result.loss.item<double>()),
        total == 1 ? std::string("No others")
                   : fmt::format("{} updates", total),
        max_in_row));
  }
}

}  // namespace tessera::training
