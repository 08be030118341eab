// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/fit.h>

#include <tessera/common/profile_scope.h>
#include <tessera/training/stop_signal.h>
#include <torch/nn/module.h>

#include "layers/mode_guard.h"
#include "packages/training/src/fit_checks.h"
#include "packages/training/src/learning_check.h"
#include "packages/training/src/merged_metrics.h"
#include "packages/training/src/optimizer_check.h"
#include "packages/training/src/ranks.h"
#include "packages/training/src/spin_check.h"
#include "packages/training/src/training_state.h"
#include "src/common/check.h"
#include "src/common/rank_group.h"
#include "src/common/tensor_text.h"
#include "src/engine/finite_gradients.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace tessera::training {

namespace {

constexpr const char* kFit = "[fit]";

// Returns FitOptions::validation_metrics, or empty copies of the training metrics.
Metrics validation_metrics_of(const FitOptions& options) {
  if (!options.validation_metrics.empty()) {
    return options.validation_metrics;
  }
  Metrics metrics;
  for (const auto& metric : options.metrics) {
    metrics.push_back(metric->make_empty());
  }
  return metrics;
}

// Runs all batches of `pass` under NoGradGuard. Resets `metrics` first, and adds the
// batches to `metrics` and `loss`. If `is_interrupted` returns true after a batch, the
// evaluation ends early, and this function returns false.
bool run_evaluation(
    Pass& pass,
    const Metrics& metrics,
    LossMean& loss,
    const std::string& where,
    const std::function<bool()>& is_interrupted) {
  const at::NoGradGuard no_grad;
  for (const auto& metric : metrics) {
    metric->reset();
  }
  int64_t batches = 0;
  pass.begin(0);
  bool is_complete = true;
  while (const std::optional<StepResult> result = pass.step()) {
    ++batches;
    loss.add(*result, where);
    update_metrics(metrics, *result, where);
    if (is_interrupted()) {
      is_complete = false;
      break;
    }
  }
  pass.end();
  TESSERA_CHECK_VALUE(
      batches > 0,
      "{} expected batches, but the source gave none. Pass a source that can be read again, or a function that opens it.",
      where);
  return is_complete;
}

// Adds the loss and the results of metrics to `logs`, with `prefix` before their names.
void add_logs(
    Logs& logs,
    const std::string& prefix,
    double loss,
    const Logs& results) {
  logs.set(prefix + "loss", loss);
  for (const auto& [name, value] : results.entries()) {
    logs.set(prefix + name, value);
  }
}

// Decides when a training stops: after a signal, and on all ranks when one rank stops.
class StopAgreement {
 public:
  // The failures of callbacks at the end of an epoch, on this rank or on any.
  struct EpochFailure {
    bool has_failed = false;
    // A callback with Callback::has_epoch_state() failed, so the state may lack the epoch.
    bool has_lost_state = false;
  };

  explicit StopAgreement(TrainingState& state)
      : state_(state), training_(state) {}

  // SIGINT and SIGTERM stop the training after this call.
  void install_signal_handlers() {
    signal_.emplace();
  }

  // Stops the training if there was a signal.
  void check_signal() {
    // A signal that comes after a stop for another reason is not read. The destructor of
    // StopSignal then raises it again for the previous handler.
    const char* name =
        signal_ && !state_.is_stopping ? signal_->name() : nullptr;
    if (name != nullptr) {
      training_.stop(name);
      state_.is_stopped_by_signal = true;
    }
  }

  // Stops if another rank stops. Collective.
  void agree() {
    stop_if_any(on_any_rank(state_.is_stopping, state_.strategy));
  }

  // Stops if another rank stops, and finds whether the last loss is finite on all ranks,
  // because all of them must decide alike whether the Checkpoint saves. The loss of a
  // skipped step that is allowed counts as finite, because the step has changed nothing.
  // Collective.
  void agree_on_step() {
    const bool is_bad = !std::isfinite(state_.loss) && !state_.is_skip_allowed;
    const std::vector<bool> agreed =
        on_any_rank({state_.is_stopping, is_bad}, state_.strategy);
    stop_if_any(agreed[0]);
    state_.is_loss_finite = !agreed[1];
  }

  // Stops if another rank stops or a callback failed on any rank. Returns the failures
  // of all ranks. Collective.
  EpochFailure agree_on_epoch(const EpochFailure& own) {
    state_.is_stopping = state_.is_stopping || own.has_failed;
    const std::vector<bool> agreed = on_any_rank(
        {state_.is_stopping, own.has_lost_state, own.has_failed},
        state_.strategy);
    stop_if_any(agreed[0]);
    return {.has_failed = agreed[2], .has_lost_state = agreed[1]};
  }

 private:
  void stop_if_any(bool is_any_stopping) {
    if (is_any_stopping) {
      // If this rank has a reason, stop() keeps it.
      training_.stop("another rank");
    }
  }

  TrainingState& state_;
  Training training_;
  std::optional<StopSignal> signal_;
};

// The first error at the end of an epoch, kept until all callbacks have run and the
// checkpoint has saved the epoch.
struct DeferredError {
  StopAgreement::EpochFailure failure = {};  // what failed in callbacks
  std::exception_ptr first = nullptr;

  template <class Run>
  bool capture(Run run) {
    try {
      run();
      return true;
    } catch (...) {
      first = first ? first : std::current_exception();
      return false;
    }
  }

  template <class Run>
  void capture_from(const Callback& callback, Run run) {
    if (!capture(run)) {
      failure.has_failed = true;
      failure.has_lost_state =
          failure.has_lost_state || callback.has_epoch_state();
    }
  }

  void rethrow() const {
    if (first) {
      std::rethrow_exception(first);
    }
  }
};

// Runs steps over the batches of each epoch. A resumed epoch continues after the batches
// that were trained on before the checkpoint.
class EpochBatches {
 public:
  EpochBatches(
      std::shared_ptr<Pass> pass,
      std::optional<int64_t> steps_per_epoch,
      TrainingState& state)
      : pass_(std::move(pass)),
        steps_per_epoch_(steps_per_epoch),
        state_(state) {}

  // Opens the source and skips the batches before the resumed step. A new epoch starts
  // with empty metrics.
  // Errors:  c10::ValueError if the source has too few batches.
  void open() {
    Progress& progress = state_.progress;
    first_step_ = progress.step_in_epoch;
    has_ended_ = false;
    const bool is_resumed = first_step_ > 0;
    if (is_resumed) {
      // Lets the source shuffle its batches as it did before the checkpoint.
      restore_generator(state_, state_.epoch_generator);
    } else {
      start_epoch();
    }
    pass_->begin(progress.epoch);
    size_ = pass_->size();
    check_size();
    if (!steps_per_epoch_ && size_) {
      progress.steps_per_epoch = size_;
    }
    if (is_resumed) {
      check_same_data(size_.value_or(first_step_));
      check_same_data(pass_->skip(first_step_));
      restore_generator(state_, state_.loaded_generator);
    }
  }

  // Runs the step on the next batch. Returns nullopt at the end of the epoch.
  std::optional<StepResult> next() {
    if (steps_per_epoch_ &&
        state_.progress.step_in_epoch >= *steps_per_epoch_) {
      return std::nullopt;
    }
    std::optional<StepResult> result = pass_->step();
    has_ended_ = !result;
    return result;
  }

  void close() {
    pass_->end();
  }

  // Closes an epoch before its first step, so that it can be opened again.
  void close_unread() {
    close();
    if (state_.progress.step_in_epoch == 0) {
      restore_generator(state_, state_.epoch_generator);
    }
  }

  // Checks an epoch that was read to its end.
  // Errors:  c10::ValueError if it had no batch, or too few.
  void check_complete() const {
    const Progress& progress = state_.progress;
    TESSERA_CHECK_VALUE(
        first_step_ == 0 || progress.step_in_epoch > first_step_ ||
            !has_ended_ || size_.value_or(first_step_) <= first_step_,
        "[fit] epoch {} was resumed after {} of {} batches, but the source gave no more batches. Resume with the same data.",
        progress.epoch,
        first_step_,
        size_.value_or(0));
    TESSERA_CHECK_VALUE(
        progress.step_in_epoch > 0,
        "[fit] epoch {} has no batch. Pass a source that can be read again in each epoch, or a function that opens it.",
        progress.epoch);
    TESSERA_CHECK_VALUE(
        !has_ended_ || !steps_per_epoch_,
        "[fit] steps_per_epoch is {}, but the source gave {} batches in epoch {}. Lower steps_per_epoch, or leave it unset.",
        steps_per_epoch_.value_or(0),
        progress.step_in_epoch,
        progress.epoch);
  }

 private:
  void start_epoch() {
    state_.epoch_generator = generator_state();
    state_.loss_mean = {};
    for (const auto& metric : state_.metrics) {
      metric->reset();
    }
  }

  void check_size() const {
    TESSERA_CHECK_VALUE(
        !steps_per_epoch_ || !size_ || *size_ >= *steps_per_epoch_,
        "[fit] steps_per_epoch is {}, but epoch {} has {} batches. Lower steps_per_epoch, or leave it unset.",
        steps_per_epoch_.value_or(0),
        state_.progress.epoch,
        size_.value_or(0));
  }

  // Raises an error if the source, which has at most `found` batches, is too short for the
  // resumed epoch.
  void check_same_data(int64_t found) const {
    TESSERA_CHECK_VALUE(
        found >= first_step_,
        "[fit] the checkpoint was saved after {} batches of epoch {}, but the source has no more than {}. Resume with the same data.",
        first_step_,
        state_.progress.epoch,
        found);
  }

  std::shared_ptr<Pass> pass_;
  std::optional<int64_t> steps_per_epoch_;
  TrainingState& state_;
  std::optional<int64_t> size_;  // batches in the epoch, if the source knows it
  int64_t first_step_ = 0;  // > 0 in a resumed epoch
  bool has_ended_ = false;  // the source has no more batches
};

class TrainingLoop {
 public:
  TrainingLoop(std::shared_ptr<Pass> pass, FitOptions options)
      : options_(std::move(options)),
        batches_(std::move(pass), options_.steps_per_epoch, state_) {
    state_.progress.epochs = options_.epochs;
    state_.progress.steps_per_epoch = options_.steps_per_epoch;
    state_.metrics = options_.metrics;
    state_.strategy = strategy_of(options_);
    state_.ranks = ranks_of(state_.strategy);
    state_.callbacks = options_.callbacks;
    if (options_.validation != nullptr) {
      validation_metrics_ = validation_metrics_of(options_);
    }
    set_log_names(state_, validation_metrics_);
  }

  History run() {
    if (options_.stop_on_signals) {
      stop_.install_signal_handlers();
    }
    if (options_.model != nullptr) {
      modes_.emplace(*options_.model);
    }
    for_each(&Callback::on_train_begin);
    std::optional<RefuseNonFiniteScope> refuse_non_finite;
    if (options_.non_finite_gradients == NonFiniteGradients::kRefuse) {
      refuse_non_finite.emplace([this] {
        if (options_.model != nullptr &&
            !std::exchange(has_checked_gradients_, true)) {
          check_gradients(options_.model->parameters(), "Nothing was changed.");
        }
      });
    }
    std::shared_ptr<void> lock;  // released when run() returns or throws
    if (options_.checkpoint != nullptr) {
      options_.checkpoint->on_train_begin(training_);
      lock = options_.checkpoint->lock(training_);
      options_.checkpoint->resume(training_);
      if (state_.loaded_generator.defined()) {
        restore_generator(state_, state_.loaded_generator);
      }
    }
    const int64_t first_step = state_.progress.step;
    // If a resumed training has no epochs left, the history keeps its stop reason.
    if (state_.progress.epoch < options_.epochs) {
      state_.history.stop_reason.clear();
      state_.history.restored.reset();
      if (options_.model != nullptr && options_.movement_warning) {
        learning_.begin(*options_.model);
      }
      parameters_.emplace(
          options_.model, options_.allow_unoptimized, state_.strategy);
      spins_.begin();
      run_epochs();
      parameters_.reset();
      state_.history.stop_reason = state_.stop_reason;
    }
    if (state_.progress.step == first_step) {
      report_no_step();
    }
    for_each(&Callback::on_last_step);
    for_each(&Callback::on_train_end);
    modes_.reset();
    return state_.history;
  }

 private:
  // Says why a training that was resumed, or stopped before its first step, trained
  // nothing.
  void report_no_step() const {
    const Progress& progress = state_.progress;
    if (progress.epoch > 0 && progress.epoch >= options_.epochs) {
      TORCH_WARN(fmt::format(
          "[fit] nothing was trained: the checkpoint in '{}' is of a training "
          "that has ended after {} epochs, and FitOptions::epochs is {}. To go "
          "on, set epochs to more than {}. For a new training, choose another "
          "directory.",
          options_.checkpoint->directory(),
          progress.epoch,
          options_.epochs,
          progress.epoch));
    } else if (!state_.stop_reason.empty()) {
      TORCH_WARN(fmt::format(
          "[fit] nothing was trained: the training stopped before its first "
          "step, because of: {}.",
          state_.stop_reason));
    }
  }

  void for_each(void (Callback::*event)(Training&)) {
    const ProfileScope scope("tessera::callbacks");
    for (const auto& callback : state_.callbacks) {
      ((*callback).*event)(training_);
    }
  }

  void run_epochs() {
    while (!state_.is_stopping && state_.progress.epoch < options_.epochs) {
      stop_.check_signal();
      stop_.agree();
      if (state_.is_stopping) {
        save_step();
      } else {
        run_epoch();
      }
    }
  }

  void run_epoch() {
    if (modes_) {
      modes_->train();
    }
    batches_.open();
    for_each(&Callback::on_epoch_begin);
    stop_.agree();
    if (state_.is_stopping) {
      batches_.close_unread();
      save_step();
      return;
    }
    while (!state_.is_stopping) {
      std::optional<StepResult> result;
      {
        const PrecisionScope scope(options_.precision);
        result = batches_.next();
      }
      if (!result) {
        break;
      }
      record_step(*result);
      result.reset();  // frees the autograd graph before the next batch
      end_step();
    }
    batches_.close();
    if (!state_.is_stopping) {
      batches_.check_complete();
      state_.progress.steps_per_epoch = state_.progress.step_in_epoch;
      end_epoch();
    }
  }

  void record_step(const StepResult& result) {
    check_loss(result, kFit);
    Progress& progress = state_.progress;
    state_.loss = result.loss.item<double>();
    state_.is_skipped = result.is_skipped;
    state_.is_skip_allowed = result.is_skip_allowed;
    has_nan_labels_ = result.is_skipped && result.labels.defined() &&
        at::isnan(result.labels).any().item<bool>();
    RankStep step{
        .loss = state_.loss,
        .examples = static_cast<double>(examples_of(result)),
        .skipped = result.is_skipped ? 1.0 : 0.0};
    if (!result.is_skipped) {
      update_metrics(state_.metrics, result, kFit);
      step.weight = std::max(1.0, step.examples);
    }
    state_.metrics_of_ranks.clear();  // they are from before this step
    if (state_.ranks->size() > 1) {
      if (!std::exchange(has_compared_, true)) {
        step.checksum = checksum_after_step();
      }
      constexpr MergePoint kStep{
          .where = "[fit] after the first step,",
          .advice =
              " In each step, call sum_gradients(), or use make_train_step().",
          .is_step = true};
      step = merge(
          kStep, step, state_.metrics, *state_.ranks, state_.step_metrics);
      state_.loss = step.loss;
    }
    // If a rank has skipped its update, the sum of the losses is not finite.
    if (step.skipped == 0.0) {
      state_.loss_mean.total += step.weight * step.loss;
      state_.loss_mean.weight += step.weight;
    }
    ++progress.step_in_epoch;
    ++progress.step;
    progress.examples += static_cast<int64_t>(step.examples);
    if (options_.log_every_steps > 0) {
      log_step();
    }
  }

  // Returns 0 for steps of make_train_step(), because they have compared the weights
  // before they changed them.
  double checksum_after_step() const {
    return options_.model == nullptr || parameters_->has_checked()
        ? 0
        : checksum_of(options_.model->parameters());
  }

  void log_step() {
    const Progress& progress = state_.progress;
    if (!state_.is_skip_allowed) {
      state_.logged_loss.total += state_.loss;
      state_.logged_loss.weight += 1.0;
    }
    if (progress.step % options_.log_every_steps == 0) {
      Logs logs = training_.logs();
      logs.set("loss", state_.logged_loss.result());
      state_.history.steps.push_back(
          {progress.epoch, std::move(logs), progress.step});
      state_.logged_loss = {};
    }
  }

  void end_step() {
    has_checked_gradients_ = false;
    parameters_->end_step();
    learning_.end_step();
    spins_.end_step();
    for_each(&Callback::on_step_end);
    stop_.check_signal();
    stop_.agree_on_step();
    TESSERA_CHECK_VALUE(
        !state_.is_skipped || state_.is_skip_allowed || state_.is_stopping,
        "[fit] the loss of step {} is {}, so its update was skipped. {} TrainStepOptions::max_skipped_steps allows some. With the callback TerminateOnNonFinite, such a training stops without an error.",
        state_.progress.step,
        number_in_message(state_.loss),
        has_nan_labels_ ? "Its labels have NaN. Correct the data."
                        : "Lower the learning rate, or check the data.");
    save_step();
  }

  // The checkpoint saves when a step is due, and when the training stops.
  void save_step() {
    if (options_.checkpoint != nullptr) {
      options_.checkpoint->on_step_end(training_);
    }
  }

  void end_epoch() {
    Logs validation_logs;
    if (options_.validation != nullptr) {
      const at::Tensor generator = generator_state();
      if (!validate(validation_logs)) {
        // A resumed training repeats the validation with the same random numbers.
        set_generator_state(generator);
        save_step();
        return;
      }
    }
    state_.epoch_logs = {};
    Logs results;
    merge(
        {"[fit] after an epoch,"}, {}, state_.metrics, *state_.ranks, results);
    add_logs(state_.epoch_logs, "", state_.loss_mean.result(), results);
    for (const auto& [name, value] : validation_logs.entries()) {
      state_.epoch_logs.set(name, value);
    }
    DeferredError error;  // rethrown after the epoch was saved
    run_epoch_callbacks(error);
    ++state_.progress.epoch;
    state_.progress.step_in_epoch = 0;
    error.capture([&] { save_epoch(error.failure); });
    error.rethrow();
  }

  // Returns false if a signal interrupted the validation.
  bool validate(Logs& logs) {
    const ProfileScope scope("tessera::validation");
    if (modes_) {
      modes_->eval();
    }
    LossMean loss;
    const PrecisionScope precision(options_.precision);
    const bool is_complete = run_evaluation(
        *options_.validation, *validation_metrics_, loss, kFitValidation, [&] {
          if (!state_.strategy.is_sharded()) {
            stop_.check_signal();
          }
          return state_.is_stopping;
        });
    if (is_complete) {
      Logs results;
      const RankStep whole = merge(
          {kFitValidation},
          {.loss = loss.result()},
          *validation_metrics_,
          *state_.ranks,
          results);
      add_logs(logs, "val_", whole.loss, results);
    }
    return is_complete;
  }

  // Callbacks that log come first, so that the others see all logs.
  void run_epoch_callbacks(DeferredError& error) {
    const ProfileScope scope("tessera::callbacks");
    const auto end_for = [&](bool is_logging) {
      for (const auto& callback : state_.callbacks) {
        std::vector<std::string> names = callback->log_names();
        if (names.empty() == is_logging) {
          continue;
        }
        state_.own_log_names = std::move(names);
        error.capture_from(
            *callback, [&] { callback->on_epoch_end(training_); });
      }
    };
    state_.is_at_epoch_end = true;
    end_for(true);
    state_.history.epochs.push_back(
        {.epoch = state_.progress.epoch, .logs = state_.epoch_logs});
    end_for(false);
    state_.is_at_epoch_end = false;
  }

  void save_epoch(const StopAgreement::EpochFailure& own) {
    const StopAgreement::EpochFailure any = stop_.agree_on_epoch(own);
    // The state of a callback that failed may lack the epoch.
    if (options_.checkpoint != nullptr && !any.has_lost_state) {
      options_.checkpoint->on_epoch_end(training_);
    }
    TESSERA_CHECK(
        own.has_failed || !any.has_failed,
        "[fit] a callback of another rank failed at the end of epoch {}. Read the error of that rank.",
        state_.progress.epoch - 1);
  }

  FitOptions options_;
  std::optional<Metrics> validation_metrics_;
  TrainingState state_;
  Training training_{state_};
  EpochBatches batches_;
  StopAgreement stop_{state_};
  std::optional<ModeGuard> modes_;
  LearningCheck learning_;
  bool has_checked_gradients_ = false;  // in this step
  bool has_nan_labels_ = false;  // of a skipped step
  bool has_compared_ = false;  // the weights of the ranks
  std::optional<ParameterWatch> parameters_;
  SpinCheck spins_;
};

}  // namespace

History fit(std::shared_ptr<Pass> training, FitOptions options) {
  check_fit(training, options);
  return TrainingLoop(std::move(training), std::move(options)).run();
}

Logs evaluate(
    Pass& pass,
    const Metrics& metrics,
    std::optional<Precision> precision) {
  const PrecisionScope scope(precision);
  constexpr const char* kEvaluate = "[evaluate]";
  check_metrics(metrics, kEvaluate);
  LossMean loss;
  run_evaluation(pass, metrics, loss, kEvaluate, [] { return false; });
  Logs logs, results;
  merge({kEvaluate}, {}, metrics, *ranks_of(Strategy::fused()), results);
  add_logs(logs, "", loss.result(), results);
  return logs;
}

}  // namespace tessera::training
