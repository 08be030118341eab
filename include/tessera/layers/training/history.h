// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <cstdint>
#include <initializer_list>
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
  /// A loop over `learning_rates(optimizer).entries()` needs the entries themselves: a
  /// reference would point into a value that is gone.
  std::vector<Entry> entries() && {
    return std::move(entries_);
  }

 private:
  std::vector<Entry> entries_;
};

/// One epoch of a History.
struct EpochRecord {
  /// Counted from 0.
  int64_t epoch = 0;
  /// "loss", the training metrics, the same with the prefix "val_", and the values that
  /// callbacks logged.
  Logs logs = {};
};

// snippet: tests/docs/reference_training_test.cpp History
/// The logs of all epochs, including those before a resume.
///
///   const History history = fit(batches, step, {.epochs = 3});
///   for (const EpochRecord& record : history.epochs) {
///     std::cout << record.epoch << " " << record.logs["loss"] << "\n";
///   }
///   const std::vector<double> losses = history["loss"];  // one per epoch
struct History {
  std::vector<EpochRecord> epochs = {};
  /// Why the training ended before all epochs were done. Empty: it did not.
  std::string stop_reason = {};

  /// The number of the signal that ended the training in this process. The stop_reason is
  /// the name of the signal then, "SIGINT" or "SIGTERM". 0: no signal ended it.
  int stop_signal() const;
  /// All names, in the order of their first appearance.
  std::vector<std::string> names() const;
  /// One value per epoch; NaN for epochs that have no such value.
  /// Errors:  c10::ValueError listing the known names.
  std::vector<double> operator[](std::string_view name) const;
};

/// {"epochs": [{"epoch": 0, "loss": 0.5, ...}, ...], "stop_reason": ""}; numbers that are
/// not finite are written as "nan", "inf" and "-inf".
Json to_json(const History& history);
/// Errors:  c10::ValueError naming what is wrong.
History history_from_json(const Json& json);

/// A line "epoch,loss,auc,...", then one line per epoch. Numbers have full precision. The
/// field of a missing value is empty.
std::string to_csv(const History& history);

}  // namespace tessera::training
