// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::training {

// snippet: tests/docs/reference_training_test.cpp Logs
/// Named values, in the order in which they were first set.
///
///   Logs logs{{"loss", 0.43}};
///   logs.set("auc", 0.79);
///   const double auc = logs["auc"];
class Logs {
 public:
  using Entry = std::pair<std::string, double>;

  Logs() = default;
  Logs(std::initializer_list<Entry> entries);

  void set(const std::string& name, double value);
  /// nullptr if there is no value with this name.
  const double* find(std::string_view name) const&;
  const double* find(std::string_view name) const&& = delete;
  /// Errors:  c10::ValueError listing the known names.
  double operator[](std::string_view name) const;
  const std::vector<Entry>& entries() const& {
    return entries_;
  }
  /// Returns the entries by value. With a reference, a loop over
  /// `learning_rates(optimizer).entries()` would read a destroyed object.
  std::vector<Entry> entries() && {
    return std::move(entries_);
  }

 private:
  std::vector<Entry> entries_;
};

// snippet: tests/docs/reference_training_test.cpp History
/// The logs of all epochs, including those before a resume.
///
///   const History history = fit(batches, step, {.epochs = 3});
///   for (const History::Record& record : history.epochs) {
///     std::cout << record.epoch << " " << record.logs["loss"] << "\n";
///   }
///   const std::vector<double> losses = history["loss"];  // one per epoch
struct History {
  /// An epoch, or a step that FitOptions::log_every_steps selects.
  struct Record {
    /// Counted from 0.
    int64_t epoch = 0;
    /// The record of an epoch has "loss", the training metrics, the same values of the
    /// validation with the prefix "val_", and the values that callbacks logged. In the
    /// record of a step, "loss" is the mean over the steps since the previous record, and
    /// the other values are the cheap metrics of the epoch so far.
    Logs logs = {};
    /// Steps since the training began; 1 is the first step. 0 in the record of an epoch.
    int64_t step = 0;
  };

  /// The epoch whose weights an EarlyStopping restored.
  struct Restored {
    /// Counted from 0.
    int64_t epoch = 0;
    /// The value that was monitored, and its name.
    std::string monitor = {};
    double value = 0.0;

    /// "restored epoch 24 (val_auc 0.9996)", where epochs are counted from 1.
    std::string text() const;
  };

  std::vector<Record> epochs = {};
  /// Why the training ended before all epochs were done. Empty if all were done.
  std::string stop_reason = {};
  /// Every n-th step, with FitOptions::log_every_steps.
  std::vector<Record> steps = {};
  /// Unset: the model has the weights of the last epoch.
  std::optional<Restored> restored = {};

  /// The number of the signal that ended the training in this process. The stop_reason is
  /// the name of the signal then, "SIGINT" or "SIGTERM". 0: no signal ended it.
  int stop_signal() const;
  /// All names of epochs, in the order of their first appearance.
  std::vector<std::string> names() const;
  /// All names of steps.
  std::vector<std::string> step_names() const;
  /// One value per epoch; NaN for epochs that have no such value.
  /// Errors:  c10::ValueError listing the known names.
  std::vector<double> operator[](std::string_view name) const;
};

/// {"epochs": [{"epoch": 0, "loss": 0.5, ...}, ...], "stop_reason": ""}, and if there are
/// any, "steps": [{"step": 1, "epoch": 0, "logs": {"loss": 0.7, ...}}, ...] and
/// "restored": {"epoch": 0, "monitor": "loss", "value": 0.5}. Numbers that are not finite
/// are written as "nan", "inf" and "-inf".
Json to_json(const History& history);
/// Errors:  c10::ValueError naming what is wrong.
History history_from_json(const Json& json);

/// What the lines of a CSV file are.
enum class HistoryRows { kEpochs, kSteps };

/// A line "epoch,loss,auc,...", then one line per epoch; with kSteps, "step,epoch,loss,..."
/// and one line per step. Numbers have full precision. The field of a missing value is
/// empty.
std::string to_csv(
    const History& history,
    HistoryRows rows = HistoryRows::kEpochs);

}  // namespace tessera::training
