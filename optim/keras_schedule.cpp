// SPDX-License-Identifier: Apache-2.0
#include "optim/keras_schedule.h"

#include <tessera/optim/optimizer_json.h>

#include "optim/keras_class_name.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera::optim {

namespace {

struct KerasSchedule {
  const char* name = "";
  /// Keys for which Keras has no default.
  std::vector<const char*> required = {};
};

const std::vector<KerasSchedule>& keras_schedules() {
  static const std::vector<KerasSchedule> schedules{
      {"ExponentialDecay",
       {"initial_learning_rate", "decay_steps", "decay_rate"}},
      {"PiecewiseConstantDecay", {"boundaries", "values"}},
      {"PolynomialDecay", {"initial_learning_rate", "decay_steps"}},
      {"InverseTimeDecay",
       {"initial_learning_rate", "decay_steps", "decay_rate"}},
      {"CosineDecay", {"initial_learning_rate", "decay_steps"}},
      {"CosineDecayRestarts", {"initial_learning_rate", "first_decay_steps"}}};
  return schedules;
}

Schedule read_schedule(const Json& json, const std::string& where) {
  const std::string name = read_keras_class_name(json, where);
  const auto& all = keras_schedules();
  const auto schedule =
      std::find_if(all.begin(), all.end(), [&](const KerasSchedule& candidate) {
        return candidate.name == name;
      });
  TESSERA_CHECK_VALUE(
      schedule != all.end(),
      "[{}] class_name must be one of {}, but got '{}'. To use your own schedule, set the learning_rate of a native spec to a callable.",
      where,
      join_names(all, &KerasSchedule::name),
      shorten(name));
  Json config = field_of(json, "config", where);
  const std::string inside = where + "." + name;
  check_kind(config.is_object(), config, "an object", inside);
  config.erase("name");
  for (const char* key : schedule->required) {
    field_of(config, key, inside);
  }
  return JsonValue<Schedule>::read(
      {{"class_name", name}, {"config", std::move(config)}}, where);
}

}  // namespace

LearningRate read_keras_learning_rate(
    const Json& json,
    const std::string& where) {
  if (json.is_number()) {
    return json.get<double>();
  }
  check_kind(json.is_object(), json, "a number or a schedule", where);
  return read_schedule(json, where);
}

Json write_keras_schedule(const Schedule& schedule) {
  const Json native = JsonValue<Schedule>::write(schedule);
  Json config = native.at("config");
  config["name"] = native.at("class_name");
  return {
      {"module", "keras.optimizers.schedules"},
      {"class_name", native.at("class_name")},
      {"config", std::move(config)},
      {"registered_name", nullptr}};
}

}  // namespace tessera::optim
