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

/// Named numbers, in the order in which they were first set.
class Logs {
 public:
  using Entry = std::pair<std::string, double>;

  Logs() = default;
  Logs(std::initializer_list<Entry> entries);

  void set(const std::string& name, double value);
  /// nullptr when there is none of this name.
  const double* find(std::string_view name) const;
  /// Errors:  c10::ValueError listing the known names.
  double operator[](std::string_view name) const;
  const std::vector<Entry>& entries() const {
    return entries_;
  }

 private:
  std::vector<Entry> entries_;
};

/// One epoch of a History.
struct EpochRecord {
  /// From 0.
  int64_t epoch = 0;
  /// "loss", the training metrics, the same with "val_", what callbacks logged.
  Logs logs = {};
};

/// What a training has logged, also before it was resumed.
struct History {
  std::vector<EpochRecord> epochs = {};
  /// Why training ended before all epochs were done; empty when they were.
  std::string stop_reason = {};

  /// The number of the signal to this process that ended it, whose name, "SIGINT"
  /// or "SIGTERM", is the stop_reason; 0: none did.
  int stop_signal() const;
  /// All names, in the order of their first appearance.
  std::vector<std::string> names() const;
  /// One value per epoch; NaN for epochs without it.
  /// Errors:  c10::ValueError listing the known names.
  std::vector<double> operator[](std::string_view name) const;
};

/// {"epochs": [{"epoch": 0, "loss": 0.5, ...}, ...], "stop_reason": ""}; numbers
/// that are not finite are "nan", "inf" and "-inf".
Json to_json(const History& history);
/// Errors:  c10::ValueError naming what is wrong.
History history_from_json(const Json& json);

/// "epoch,loss,auc,...", then a line per epoch; numbers in full precision, an
/// empty field for epochs without a value.
std::string to_csv(const History& history);

}  // namespace tessera::training
