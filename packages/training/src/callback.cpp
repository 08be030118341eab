// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/callback.h>

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>
#include <torch/serialize/archive.h>

#include "packages/training/src/merged_metrics.h"
#include "packages/training/src/ranks.h"
#include "packages/training/src/training_state.h"
#include "src/common/check.h"
#include "src/common/rank_group.h"

#include <ATen/core/functional.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::training {

namespace {

constexpr int64_t kFormat = 1;

std::vector<std::string> names_of(const Metrics& metrics) {
  return c10::fmap(metrics, [](const auto& metric) { return metric->name(); });
}

// The entry "training" of a checkpoint, which is JSON.
struct Saved {
  int64_t format = kFormat;
  Progress progress = {};
  std::vector<std::string> metrics = {};
  std::vector<std::string> callbacks = {};  // their state_name()

  TESSERA_FIELDS(format, progress, metrics, callbacks)
};

Json read_json(
    torch::serialize::InputArchive& archive,
    const std::string& key) {
  c10::IValue text;
  TESSERA_CHECK_VALUE(
      archive.try_read(key, text) && text.isString(),
      "[Checkpoint] expected a training that fit() saved, but the checkpoint has no '{}'. It is damaged, or another program wrote it. Load an earlier checkpoint, or a copy.",
      shorten(key));
  return parse_json(text.toStringRef(), fmt::format("[Checkpoint] '{}':", key));
}

// Each saved state goes to one of the ranks. The number of ranks may have changed since
// the state was saved.
void load_own_states(
    Metric& metric,
    const std::vector<at::Tensor>& states,
    const RankGroup& ranks) {
  const size_t count = ranks.size();
  const size_t rank = ranks.rank();
  metric.reset();
  for (size_t i = rank; i < states.size(); i += count) {
    if (i == rank) {
      metric.load_state(states[i]);
    } else if (can_merge(metric)) {
      metric.merge(states[i]);
    }
  }
}

}  // namespace

const Progress& Training::progress() const {
  return state_.progress;
}

const Strategy& Training::strategy() const {
  return state_.strategy;
}

bool Training::on_any_rank(bool flag) const {
  return training::on_any_rank(flag, strategy());
}

const History& Training::history() const {
  return state_.history;
}

Logs Training::logs() const {
  if (state_.is_at_epoch_end) {
    return state_.epoch_logs;
  }
  Logs logs{{"loss", state_.loss_mean.result()}};
  if (state_.ranks->size() > 1) {
    for (const auto& [name, value] : state_.step_metrics.entries()) {
      logs.set(name, value);
    }
    return logs;
  }
  for (const auto& metric : state_.metrics) {
    if (metric->is_cheap()) {
      logs.set(metric->name(), metric->result());
    }
  }
  return logs;
}

double Training::loss() const {
  return state_.loss;
}

bool Training::is_loss_finite() const {
  return state_.is_loss_finite;
}

bool Training::is_skipped() const {
  return state_.is_skipped;
}

bool Training::is_skip_allowed() const {
  return state_.is_skip_allowed;
}

std::vector<std::string> Training::log_names() const {
  return state_.log_names;
}

Better Training::better(const std::string& log_name) const {
  const auto found = state_.better.find(log_name);
  return found == state_.better.end() ? Better::kUnknown : found->second;
}

void Training::log(const std::string& name, double value) {
  const auto& known = state_.own_log_names;
  TESSERA_CHECK_VALUE(
      state_.is_at_epoch_end && std::ranges::find(known, name) != known.end(),
      "[Training::log] '{}' can be logged only in on_epoch_end(), by a callback whose log_names() has it. Add it to log_names(), and log it there.",
      shorten(name));
  state_.epoch_logs.set(name, value);
}

void Training::stop(const std::string& reason) {
  if (!state_.is_stopping) {
    state_.is_stopping = true;
    state_.stop_reason = reason;
  }
}

bool Training::is_stopping() const {
  return state_.is_stopping;
}

void Training::set_restored(History::Restored restored) {
  state_.history.restored = std::move(restored);
}

void Training::keep(std::shared_ptr<void> resource) {
  state_.kept.push_back(std::move(resource));
}

void Training::collect() {
  if (state_.ranks->size() > 1 && state_.progress.step_in_epoch > 0) {
    state_.metrics_of_ranks = gather_states(state_.metrics, *state_.ranks);
  }
}

void Training::save(torch::serialize::OutputArchive& archive) const {
  const LossMean& mean = state_.loss_mean;
  archive.write(
      "loss", at::tensor({mean.total, mean.weight, state_.loss}), true);
  archive.write(
      "logged_loss",
      at::tensor(
          {state_.logged_loss.total, state_.logged_loss.weight}, at::kDouble),
      true);
  Saved saved{.progress = state_.progress, .metrics = names_of(state_.metrics)};
  const bool is_in_epoch = state_.progress.step_in_epoch > 0;
  for (size_t i = 0; is_in_epoch && i < state_.metrics.size(); ++i) {
    archive.write(
        fmt::format("metric_{}", i), state_.metrics[i]->state(), true);
    for (size_t rank = 1; rank < state_.metrics_of_ranks.size(); ++rank) {
      archive.write(
          fmt::format("metric_{}_rank_{}", i, rank),
          state_.metrics_of_ranks[rank][i],
          true);
    }
  }
  for (const auto& callback : state_.callbacks) {
    if (const std::string name = callback->state_name(); !name.empty()) {
      torch::serialize::OutputArchive nested(archive.compilation_unit());
      callback->save_state(nested);
      archive.write(fmt::format("callback_{}", saved.callbacks.size()), nested);
      saved.callbacks.push_back(name);
    }
  }
  archive.write("training", c10::IValue(write_fields(saved).dump()));
  History history = state_.history;
  if (!state_.is_stopped_by_signal) {
    history.stop_reason = state_.stop_reason;
  }
  archive.write("history", c10::IValue(to_json(history).dump()));
  archive.write("generator", generator_state(), true);
  if (is_in_epoch) {
    archive.write("epoch_generator", state_.epoch_generator, true);
  }
}

void Training::load(torch::serialize::InputArchive& archive) {
  auto saved =
      read_fields<Saved>(read_json(archive, "training"), "Checkpoint.training");
  TESSERA_CHECK_VALUE(
      saved.format == kFormat,
      "[Checkpoint] the format of the saved training must be {}, but got {}. Use the version of Tessera that saved it.",
      kFormat,
      saved.format);
  History history = history_from_json(read_json(archive, "history"));
  const bool is_in_epoch = saved.progress.step_in_epoch > 0;
  const auto names = names_of(state_.metrics);
  TESSERA_CHECK_VALUE(
      !is_in_epoch || saved.metrics == names,
      "[Checkpoint] the checkpoint was saved in the middle of an epoch with the metrics {}, but this training has {}. Pass the same metrics.",
      fmt::format("[{}]", shorten_all(saved.metrics)),
      fmt::format("[{}]", shorten_all(names)));
  const auto epochs = state_.progress.epochs;
  const auto steps_per_epoch = state_.progress.steps_per_epoch;
  TESSERA_CHECK_VALUE(
      !steps_per_epoch || saved.progress.step_in_epoch <= *steps_per_epoch,
      "[Checkpoint] the checkpoint was saved after step {} of an epoch, but steps_per_epoch is {}. Resume with at least as many steps.",
      saved.progress.step_in_epoch,
      steps_per_epoch.value_or(0));
  std::vector<std::vector<at::Tensor>> metrics(
      is_in_epoch ? names.size() : 0);  // [metric][rank]
  at::Tensor loss, logged_loss, generator, epoch_generator;
  for (size_t i = 0; i < metrics.size(); ++i) {
    at::Tensor state;
    archive.read(fmt::format("metric_{}", i), state, true);
    do {
      // Raises an error for the state of another metric, before anything is changed.
      state_.metrics[i]->make_empty()->load_state(state);
      metrics[i].push_back(state);
      state = at::Tensor();
    } while (archive.try_read(
        fmt::format("metric_{}_rank_{}", i, metrics[i].size()), state, true));
  }
  if (is_in_epoch) {
    archive.read("epoch_generator", epoch_generator, true);
  }
  archive.read("loss", loss, true);
  archive.read("generator", generator, true);
  // Checkpoints written before steps could be logged have no "logged_loss".
  const bool has_logged_loss =
      archive.try_read("logged_loss", logged_loss, true);

  for (size_t i = 0; i < metrics.size(); ++i) {
    load_own_states(*state_.metrics[i], metrics[i], *state_.ranks);
  }
  state_.loss_mean = {loss[0].item<double>(), loss[1].item<double>()};
  state_.logged_loss = {};
  if (has_logged_loss) {
    state_.logged_loss = {
        logged_loss[0].item<double>(), logged_loss[1].item<double>()};
  }
  state_.loss = loss[2].item<double>();
  state_.is_loss_finite = std::isfinite(state_.loss);
  state_.loaded_generator = std::move(generator);
  state_.epoch_generator = std::move(epoch_generator);
  state_.progress = saved.progress;
  state_.progress.epochs = epochs;
  if (steps_per_epoch) {
    state_.progress.steps_per_epoch = steps_per_epoch;
  }
  state_.history = std::move(history);

  auto& names_left = saved.callbacks;
  for (const auto& callback : state_.callbacks) {
    const std::string name = callback->state_name();
    const auto found = std::ranges::find(names_left, name);
    if (!name.empty() && found != names_left.end()) {
      found->clear();  // the next callback of this name takes the next state
      torch::serialize::InputArchive nested;
      archive.read(
          fmt::format("callback_{}", found - names_left.begin()), nested);
      callback->load_state(nested);
    }
  }
}

}  // namespace tessera::training
