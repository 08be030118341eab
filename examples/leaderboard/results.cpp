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

// Calls use(name, field) for each field but the metrics.
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
  Json json = {{"settings", result.settings}, {"metrics", Json::object()}};
  for (const auto& [name, value] : result.metrics) {
    json["metrics"][name] = value;
  }
  visit_fields(result, [&](const char* name, const auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    json[name] = JsonValue<Field>::write(field);
  });
  return json;
}

Result result_of(const Json& json, const std::string& where) {
  tessera::check_kind(json.is_object(), json, "an object", where);
  Result result{.settings = tessera::field_of(json, "settings", where)};
  const Json& metrics = tessera::field_of(json, "metrics", where);
  tessera::check_kind(metrics.is_object(), metrics, "an object", where);
  for (const auto& [name, value] : metrics.items()) {
    result.metrics.emplace_back(name, JsonValue<double>::read(value, where));
  }
  visit_fields(result, [&](const char* name, auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    field = JsonValue<Field>::read(tessera::field_of(json, name, where), where);
  });
  return result;
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

const Result* ResultFile::find(
    const std::string& data,
    const std::string& model,
    int64_t seed,
    const Json& settings) const {
  const auto found =
      std::find_if(results_.begin(), results_.end(), [&](const Result& result) {
        return result.data == data && result.model == model &&
            result.seed == seed && result.settings == settings;
      });
  return found == results_.end() ? nullptr : &*found;
}

void ResultFile::add(Result result) {
  results_ = ResultFile(path_).results_;  // another program may have written it
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
