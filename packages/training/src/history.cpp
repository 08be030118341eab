// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/history.h>

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include <ATen/core/functional.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

#include "src/common/check.h"

namespace tessera::training {

namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

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
       {kNoNumber,
        std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    if (json == number_to_json(number)) {
      return number;
    }
  }
  check_kind(/*is_valid=*/false, json, "a number", where);
  return kNoNumber;
}

std::vector<std::string> names_in(const std::vector<History::Record>& records) {
  std::vector<std::string> names;
  for (const History::Record& record : records) {
    for (const auto& [name, value] : record.logs.entries()) {
      if (std::ranges::find(names, name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  return names;
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

std::string csv_of(const std::vector<History::Record>& records, bool is_steps) {
  const std::vector<std::string> names = names_in(records);
  std::string text = is_steps ? "step,epoch" : "epoch";
  for (const std::string& name : names) {
    text.append(",").append(csv_field(name));
  }
  for (const History::Record& record : records) {
    text += is_steps ? fmt::format("\n{},{}", record.step, record.epoch)
                     : fmt::format("\n{}", record.epoch);
    for (const std::string& name : names) {
      const double* value = record.logs.find(name);
      text.append(",").append(value == nullptr ? "" : number_text(*value));
    }
  }
  return text + "\n";
}

// Adds the values to `json`.
Json logs_to_json(const Logs& logs, Json json) {
  for (const auto& [name, value] : logs.entries()) {
    json[name] = number_to_json(value);
  }
  return json;
}

// Reads all values but the one named `other`.
Logs logs_from_json(
    const Json& json,
    const std::string& where,
    std::string_view other = {}) {
  Logs logs;
  for (const auto& [name, value] : json.items()) {
    if (name != other) {
      logs.set(name, number_from_json(value, where + "." + shorten(name)));
    }
  }
  return logs;
}

int64_t int_from_json(
    const Json& json,
    const char* key,
    const std::string& where) {
  return JsonValue<int64_t>::read(
      field_of(json, key, where), where + "." + key);
}

History::Record step_from_json(const Json& json) {
  constexpr const char* kWhere = "History.steps";
  const int64_t step = int_from_json(json, "step", kWhere);
  const Json& logs = field_of(json, "logs", kWhere);
  check_kind(logs.is_object(), logs, "an object", "History.steps.logs");
  return {
      .epoch = int_from_json(json, "epoch", kWhere),
      .logs = logs_from_json(logs, kWhere),
      .step = step};
}

}  // namespace

Logs::Logs(std::initializer_list<Entry> entries) {
  for (const auto& [name, value] : entries) {
    set(name, value);
  }
}

void Logs::set(const std::string& name, double value) {
  if (const auto found = std::ranges::find(entries_, name, &Entry::first);
      found != entries_.end()) {
    found->second = value;
  } else {
    entries_.emplace_back(name, value);
  }
}

const double* Logs::find(std::string_view name) const& {
  const auto found = std::ranges::find(entries_, name, &Entry::first);
  return found == entries_.end() ? nullptr : &found->second;
}

double Logs::operator[](std::string_view name) const {
  const double* value = find(name);
  const auto known =
      c10::fmap(entries_, [](const Entry& entry) { return entry.first; });
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

std::string History::Restored::text() const {
  return fmt::format(
      "restored epoch {} ({} {:.4g})", epoch + 1, monitor, value);
}

std::vector<std::string> History::names() const {
  return names_in(epochs);
}

std::vector<std::string> History::step_names() const {
  return names_in(steps);
}

std::vector<double> History::operator[](std::string_view name) const {
  const std::vector<std::string> known = names();
  TESSERA_CHECK_VALUE(
      std::ranges::find(known, name) != known.end(),
      "[History] '{}' was not logged. Known: {}.",
      shorten(name),
      joined(known));
  return c10::fmap(epochs, [&](const History::Record& record) {
    const double* value = record.logs.find(name);
    return value == nullptr ? kNoNumber : *value;
  });
}

Json to_json(const History& history) {
  Json epochs = Json::array();
  for (const History::Record& record : history.epochs) {
    epochs.push_back(logs_to_json(record.logs, {{"epoch", record.epoch}}));
  }
  Json json = {
      {"epochs", std::move(epochs)}, {"stop_reason", history.stop_reason}};
  if (!history.steps.empty()) {
    Json steps = Json::array();
    for (const History::Record& record : history.steps) {
      steps.push_back(
          {{"step", record.step},
           {"epoch", record.epoch},
           {"logs", logs_to_json(record.logs, Json::object())}});
    }
    json["steps"] = std::move(steps);
  }
  if (history.restored) {
    json["restored"] = {
        {"epoch", history.restored->epoch},
        {"monitor", history.restored->monitor},
        {"value", number_to_json(history.restored->value)}};
  }
  return json;
}

History history_from_json(const Json& json) {
  check_depth(json, "History");
  check_known_keys(
      json, {"epochs", "stop_reason", "steps", "restored"}, "History");
  const Json& epochs = field_of(json, "epochs", "History");
  check_kind(epochs.is_array(), epochs, "a list", "History.epochs");
  History history;
  if (json.contains("stop_reason")) {
    history.stop_reason = JsonValue<std::string>::read(
        json["stop_reason"], "History.stop_reason");
  }
  for (const Json& entry : epochs) {
    history.epochs.push_back(
        {.epoch = int_from_json(entry, "epoch", "History.epochs"),
         .logs = logs_from_json(entry, "History", "epoch")});
  }
  if (json.contains("steps")) {
    const Json& steps = json["steps"];
    check_kind(steps.is_array(), steps, "a list", "History.steps");
    for (const Json& entry : steps) {
      history.steps.push_back(step_from_json(entry));
    }
  }
  if (json.contains("restored")) {
    constexpr const char* kWhere = "History.restored";
    const Json& restored = json["restored"];
    history.restored = History::Restored{
        .epoch = int_from_json(restored, "epoch", kWhere),
        .monitor = JsonValue<std::string>::read(
            field_of(restored, "monitor", kWhere), "History.restored.monitor"),
        .value = number_from_json(
            field_of(restored, "value", kWhere), "History.restored.value")};
  }
  return history;
}

std::string to_csv(const History& history, HistoryRows rows) {
  return rows == HistoryRows::kEpochs
      ? csv_of(history.epochs, /*is_steps=*/false)
      : csv_of(history.steps, /*is_steps=*/true);
}

}  // namespace tessera::training
