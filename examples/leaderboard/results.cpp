// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/results.h"

#include "src/common/atomic_file.h"

#include <tessera/common/json_value.h>
#include <tessera/tessera.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

using tessera::Json;
using tessera::JsonValue;

namespace {

using NamedValues = std::vector<std::pair<std::string, double>>;

Json json_of(const NamedValues& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) {
    json[name] = value;
  }
  return json;
}

NamedValues named_values(const Json& json, const std::string& where) {
  tessera::check_kind(json.is_object(), json, "an object", where);
  NamedValues values;
  for (const auto& [name, value] : json.items()) {
    values.emplace_back(name, JsonValue<double>::read(value, where));
  }
  return values;
}

// Calls use(name, field) for each field that every file has, but for those of JSON.
template <class Self, class Use>
void visit_fields(Self& self, Use use) {
  use("data", self.data);
  use("model", self.model);
  use("seed", self.seed);
  use("validation", self.validation);
  use("epochs", self.epochs);
  use("best_epoch", self.best_epoch);
  use("train_seconds", self.train_seconds);
  use("evaluation_seconds", self.evaluation_seconds);
  use("machine", self.machine);
  use("curve", self.curve);
  use("curve_seconds", self.curve_seconds);
}

Json json_of(const Result& result) {
  Json json = {
      {"settings", result.settings}, {"metrics", json_of(result.metrics)}};
  visit_fields(result, [&](const char* name, const auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    json[name] = JsonValue<Field>::write(field);
  });
  json["standard_errors"] = json_of(result.standard_errors);
  json["peak_mebibytes"] = result.peak_mebibytes;
  if (!result.tries.empty()) {
    json["chosen"] = result.chosen;
    json["tries"] = result.tries;
    json["choice_seconds"] = result.choice_seconds;
  }
  return json;
}

Result result_of(const Json& json, const std::string& where) {
  tessera::check_kind(json.is_object(), json, "an object", where);
  Result result{
      .settings = tessera::field_of(json, "settings", where),
      .metrics =
          named_values(tessera::field_of(json, "metrics", where), where)};
  visit_fields(result, [&](const char* name, auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    field = JsonValue<Field>::read(tessera::field_of(json, name, where), where);
  });
  // Older files do not have these.
  if (json.contains("standard_errors")) {
    result.standard_errors = named_values(json["standard_errors"], where);
    result.peak_mebibytes = JsonValue<int64_t>::read(
        tessera::field_of(json, "peak_mebibytes", where), where);
  }
  if (json.contains("tries")) {
    result.chosen = tessera::field_of(json, "chosen", where);
    result.tries = json["tries"];
    result.choice_seconds = JsonValue<double>::read(
        tessera::field_of(json, "choice_seconds", where), where);
  }
  return result;
}

bool has_key(const Result& result, const Result& key) {
  return result.data == key.data && result.model == key.model &&
      result.seed == key.seed && result.settings == key.settings;
}

}  // namespace

std::string machine_name() {
  std::string processor = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      processor = line.substr(line.find(": ") + 2);
      break;
    }
  }
  return processor + ", " + tessera::instruction_set() + ", " +
      std::to_string(at::get_num_threads()) +
      (at::get_num_threads() == 1 ? " thread" : " threads");
}

ResultFile::ResultFile(std::string path) : path_(std::move(path)) {
  if (!std::filesystem::exists(path_)) {
    return;
  }
  std::ifstream file(path_);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string where = "[leaderboard] " + path_ + ":";
  TORCH_CHECK_VALUE(
      file.good(), where, " the file can't be read. Check its permissions.");
  const Json json = tessera::parse_json(text, where);
  tessera::check_kind(json.is_array(), json, "a list of results", where);
  for (const Json& entry : json) {
    results_.push_back(result_of(entry, where));
  }
}

const Result* ResultFile::find(const Result& key) const {
  const auto found =
      std::find_if(results_.begin(), results_.end(), [&](const Result& result) {
        return has_key(result, key);
      });
  return found == results_.end() ? nullptr : &*found;
}

void ResultFile::add(Result result) {
  results_ = ResultFile(path_).results_;  // another program may have written it
  std::erase_if(
      results_, [&](const Result& other) { return has_key(other, result); });
  results_.push_back(std::move(result));
  const std::string text = json_text_of(results_);
  tessera::AtomicFile file(path_, "[leaderboard]");
  file.write(text.data(), text.size());
  file.commit();
}

std::string json_text_of(const std::vector<Result>& results) {
  std::string text = "[";
  for (const Result& result : results) {
    text += text.size() == 1 ? "\n" : ",\n";
    text += json_of(result).dump();
  }
  return text + "\n]\n";
}
