// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/fit_checks.h"

#include <tessera/common/shorten.h>
#include <tessera/engine/embedding_engine.h>
#include <tessera/engine/table_module.h>
#include <tessera/training/history_files.h>

#include "packages/training/src/ranks.h"
#include "src/common/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

namespace tessera::training {

namespace {

void check_validation(const FitOptions& options) {
  TESSERA_CHECK_VALUE(
      options.validation != nullptr || options.validation_metrics.empty(),
      "[fit] expected batches for validation_metrics, but validation is nullptr. Make them with make_pass(source, loss_of).");
  check_metrics(options.validation_metrics, kFitValidation);
  for (const auto& metric : options.validation_metrics) {
    TESSERA_CHECK_VALUE(
        std::ranges::find(options.metrics, metric) == options.metrics.end(),
        "[fit] metrics and validation_metrics have the same object '{}', which the validation would reset. Make two objects, or leave validation_metrics empty.",
        metric->name());
  }
}

void check_callbacks(const Callbacks& callbacks) {
  for (size_t i = 0; i < callbacks.size(); ++i) {
    TESSERA_CHECK_VALUE(
        callbacks[i] != nullptr,
        "[fit] expected a callback, but callback {} is null. Remove it, or make it.",
        i);
    for (size_t j = 0; j < i; ++j) {
      TESSERA_CHECK_VALUE(
          callbacks[i] != callbacks[j],
          "[fit] callback {} is the same object as callback {}. List each callback once.",
          i,
          j);
    }
  }
}

// Returns one text for all ways to write a path, with or without a slash at its end.
std::string canonical_path(const std::string& path) {
  std::error_code error;
  const auto canonical = std::filesystem::weakly_canonical(
      std::filesystem::absolute(path, error) / "", error);
  return error ? path : canonical.string();
}

// The checkpoint and each callback need a directory of their own, because they save
// different models.
void check_directories(const FitOptions& options) {
  std::set<std::string> seen;
  const auto add = [&](const std::string& directory) {
    TESSERA_CHECK_VALUE(
        directory.empty() || seen.insert(canonical_path(directory)).second,
        "[fit] two callbacks, or a callback and the checkpoint, would both save into '{}'. Give each its own directory.",
        directory);
  };
  if (options.checkpoint != nullptr) {
    add(options.checkpoint->directory());
  }
  for (const auto& callback : options.callbacks) {
    add(callback->directory());
  }
}

// Two histories in one file would overwrite each other.
void check_history_files(const Callbacks& callbacks) {
  std::set<std::string> seen;
  for (const auto& callback : callbacks) {
    const auto* file = dynamic_cast<const detail::HistoryFile*>(callback.get());
    if (file == nullptr) {
      continue;
    }
    TESSERA_CHECK_VALUE(
        seen.insert(canonical_path(file->path())).second,
        "[fit] two callbacks would both write to the file '{}'. Give each its own file.",
        file->path());
  }
}

void check_engines(const FitOptions& options) {
  if (options.model == nullptr) {
    return;
  }
  for (const auto& part : options.model->named_modules()) {
    const auto* engine =
        dynamic_cast<const EmbeddingEngine*>(part.value().get());
    TESSERA_CHECK_VALUE(
        engine == nullptr || !engine->is_shut_down(),
        "[fit] {} must be a running engine, but its shutdown() was called. Make the model again, and call shutdown() only after fit().",
        part.key().empty()
            ? std::string("the model")
            : fmt::format("'{}' of the model", shorten(part.key())));
  }
}

// fit() and the tables must communicate over the same group of ranks.
void check_strategy(const FitOptions& options) {
  if (options.model == nullptr) {
    return;
  }
  const Strategy own = strategy_of(options);
  for (const auto& part : options.model->modules()) {
    const auto* tables = TableModule::of(*part);
    TESSERA_CHECK_VALUE(
        tables == nullptr || !tables->strategy().is_sharded() ||
            ranks_of(tables->strategy()) == ranks_of(own),
        "[fit] the model has sharded tables, but FitOptions::strategy is {}. Leave it unset, or set it to the strategy of the tables, which must have one backend.",
        own.is_sharded() ? "of another backend" : own.name());
  }
}

}  // namespace

void check_metrics(const Metrics& metrics, const std::string& where) {
  for (size_t i = 0; i < metrics.size(); ++i) {
    TESSERA_CHECK_VALUE(
        metrics[i] != nullptr,
        "{} expected a metric, but metric {} is null. Remove it, or make it.",
        where,
        i);
    TESSERA_CHECK_VALUE(
        metrics[i]->name() != "loss" && metrics[i]->name() != "epoch",
        "{} a metric can't be named '{}', because the logs have another value of this name. Give it another name.",
        where,
        metrics[i]->name());
    for (size_t j = 0; j < i; ++j) {
      TESSERA_CHECK_VALUE(
          metrics[i]->name() != metrics[j]->name(),
          "{} two metrics are named '{}'. Give one of them another name.",
          where,
          metrics[i]->name());
    }
  }
}

Strategy strategy_of(const FitOptions& options) {
  std::optional<Strategy> strategy = options.strategy;
  if (!strategy && options.model != nullptr) {
    strategy = sharded_strategy_of(*options.model);
  }
  return strategy.value_or(Strategy::fused());
}

void check_fit(const std::shared_ptr<Pass>& pass, const FitOptions& options) {
  TESSERA_CHECK_VALUE(
      pass != nullptr,
      "[fit] expected batches for the training, but got nullptr. Make them with make_pass(source, step).");
  TESSERA_CHECK_VALUE(
      options.epochs >= 0,
      "[fit] epochs must be >= 0, but got {}. Set it to the number of epochs in all.",
      options.epochs);
  TESSERA_CHECK_VALUE(
      !options.steps_per_epoch || *options.steps_per_epoch >= 1,
      "[fit] steps_per_epoch must be >= 1, but got {}. Leave it unset to read each epoch to its end.",
      options.steps_per_epoch.value_or(0));
  TESSERA_CHECK_VALUE(
      options.log_every_steps >= 0,
      "[fit] log_every_steps must be >= 0, but got {}. Set it to 0 to log no steps.",
      options.log_every_steps);
  check_metrics(options.metrics, "[fit]");
  check_validation(options);
  check_strategy(options);
  pass->check_step(strategy_of(options));
  check_engines(options);
  check_callbacks(options.callbacks);
  check_directories(options);
  check_history_files(options.callbacks);
}

}  // namespace tessera::training
