// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/history.h>

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

#include "src/common/check.h"

namespace tessera::training {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string joined(const std::vector<std::string>& names) {
  return names.empty() ? "(none)" : shorten_all(names);
}

// Writes every NaN without a sign, because the sign has no meaning.
std::string number_text(double number) {
  return std::isnan(number) ? "nan" : fmt::format("{}", number);
}

Json number_to_json(double number) {
  return std::isfinite(number) ? Json(number) : Json(number_text(number));
}

double number_from_json(const Json& json, const std::string& where) {
  if (json.is_number()) {
    return json.get<double>();
  }
  for (const double number :
       {kNan,
        std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    if (json == number_to_json(number)) {
      return number;
    }
  }
  require_kind(/*is_valid=*/false, json, "a number", where);
  return kNan;
}

// Quotes a field that has a separator, a quote or a line break.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char character : text) {
    quoted += character;
    if (character == '"') {
      quoted += character;
    }
  }
  return quoted + "\"";
}

}  // namespace

Logs::Logs(std::initializer_list<Entry> entries) {
  for (const auto& [name, value] : entries) {
    set(name, value);
  }
}

void Logs::set(const std::string& name, double value) {
  for (Entry& entry : entries_) {
    if (entry.first == name) {
      entry.second = value;
      return;
    }
  }
  entries_.emplace_back(name, value);
}

const double* Logs::find(std::string_view name) const& {
  for (const Entry& entry : entries_) {
    if (entry.first == name) {
      return &entry.second;
    }
  }
  return nullptr;
}

double Logs::operator[](std::string_view name) const {
  const double* value = find(name);
  std::vector<std::string> known;
  for (const Entry& entry : entries_) {
    known.push_back(entry.first);
  }
  TESSERA_CHECK_VALUE(
      value != nullptr,
      "[Logs] '{}' was not logged. Known: {}.",
      shorten(name),
      joined(known));
  return *value;
}

int History::stop_signal() const {
  return stop_reason == "SIGINT" ? SIGINT
      : stop_reason == "SIGTERM" ? SIGTERM
                                 : 0;
}

std::vector<std::string> History::names() const {
  std::vector<std::string> names;
  for (const EpochRecord& record : epochs) {
    for (const auto& [name, value] : record.logs.entries()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  return names;
}

std::vector<double> History::operator[](std::string_view name) const {
  const std::vector<std::string> known = names();
  TESSERA_CHECK_VALUE(
      std::find(known.begin(), known.end(), name) != known.end(),
      "[History] '{}' was not logged. Known: {}.",
      shorten(name),
      joined(known));
  std::vector<double> values;
  for (const EpochRecord& record : epochs) {
    const double* value = record.logs.find(name);
    values.push_back(value == nullptr ? kNan : *value);
  }
  return values;
}

Json to_json(const History& history) {
  Json epochs = Json::array();
  for (const EpochRecord& record : history.epochs) {
    Json entry = {{"epoch", record.epoch}};
    for (const auto& [name, value] : record.logs.entries()) {
      entry[name] = number_to_json(value);
    }
    epochs.push_back(std::move(entry));
  }
  return {{"epochs", std::move(epochs)}, {"stop_reason", history.stop_reason}};
}

History history_from_json(const Json& json) {
  check_depth(json, "History");
  require_known_keys(json, {"epochs", "stop_reason"}, "History");
  const Json& epochs = require_key(json, "epochs", "History");
  require_kind(epochs.is_array(), epochs, "a list", "History.epochs");
  History history;
  if (json.contains("stop_reason")) {
    history.stop_reason = JsonValue<std::string>::read(
        json["stop_reason"], "History.stop_reason");
  }
  for (const Json& entry : epochs) {
    EpochRecord record;
    record.epoch = JsonValue<int64_t>::read(
        require_key(entry, "epoch", "History.epochs"), "History.epochs.epoch");
    for (const auto& [name, value] : entry.items()) {
      if (name != "epoch") {
        record.logs.set(
            name, number_from_json(value, "History." + shorten(name)));
      }
    }
    history.epochs.push_back(std::move(record));
  }
  return history;
}

std::string to_csv(const History& history) {
  const std::vector<std::string> names = history.names();
  std::string text = "epoch";
  for (const std::string& name : names) {
    text.append(",").append(csv_field(name));
  }
  text += '\n';
  for (const EpochRecord& record : history.epochs) {
    text += std::to_string(record.epoch);
    for (const std::string& name : names) {
      const double* value = record.logs.find(name);
      text += ',';
      if (value != nullptr) {
        text += number_text(*value);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace tessera::training
