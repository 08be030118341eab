// SPDX-License-Identifier: Apache-2.0
// The options that all classes of Keras share. The defaults here and in
// optim/optimizers/ are those of the constructors in keras.optimizers (3.x),
// tf_keras.optimizers and tf_keras.optimizers.legacy, which agree. Fidelity::kTpu
// follows translate_keras_optimizer of TensorFlow Recommenders.
#include "optim/keras_options.h"

#include <tessera/optim/optimizer_json.h>

#include "src/common/check.h"
#include "src/common/names.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace tessera::optim {

namespace {

constexpr const char* kUseClipvalue =
    "Use clipvalue instead: an update sees one row at a time, but a norm needs all gradients.";

// The options of Keras 3 and tf_keras, in the order of Keras 3.
std::vector<KerasOption> current_options() {
  return {
      {"weight_decay", nullptr, Mapping::kNotOnTpu},
      {"clipnorm", nullptr, Mapping::kNoCounterpart, kUseClipvalue},
      {"global_clipnorm", nullptr, Mapping::kNoCounterpart, kUseClipvalue},
      {"clipvalue", nullptr, Mapping::kNotOnTpu},
      {"use_ema",
       false,
       Mapping::kNoCounterpart,
       "Average copies of embedding_tables() yourself."},
      {"ema_momentum", 0.99, Mapping::kWithoutEffect},
      {"ema_overwrite_frequency", nullptr, Mapping::kWithoutEffect},
      {"loss_scale_factor",
       nullptr,
       Mapping::kNoCounterpart,
       "Remove it: tables and gradients are float32 and need no scale."},
      {"gradient_accumulation_steps", nullptr, Mapping::kNotOnTpu}};
}

// The options that only tf_keras writes.
std::vector<KerasOption> tf_keras_options() {
  return {
      {"jit_compile", false, Mapping::kWithoutEffect},
      {"is_legacy_optimizer", false, Mapping::kWithoutEffect}};
}

std::vector<KerasOption> legacy_options() {
  return {
      {"decay", 0.0, Mapping::kNotOnTpu},
      {"clipnorm", nullptr, Mapping::kNoCounterpart, kUseClipvalue},
      {"global_clipnorm", nullptr, Mapping::kNoCounterpart, kUseClipvalue},
      {"clipvalue", nullptr, Mapping::kNotOnTpu},
      {"is_legacy_optimizer", true, Mapping::kWithoutEffect}};
}

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
  const auto schedule = std::ranges::find(all, name, &KerasSchedule::name);
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

std::vector<KerasOption> options_of(
    const KerasClass& keras_class,
    KerasSource source) {
  std::vector<KerasOption> options{
      {"name", nullptr, Mapping::kWithoutEffect}, keras_class.options.front()};
  const auto append = [&](const std::vector<KerasOption>& more, size_t from) {
    options.insert(
        options.end(), more.begin() + static_cast<int64_t>(from), more.end());
  };
  append(
      source == KerasSource::kLegacy ? legacy_options() : current_options(), 0);
  append(keras_class.options, 1);
  if (source == KerasSource::kCurrent) {
    append(tf_keras_options(), 0);
  }
  for (KerasOption& option : options) {
    for (const KerasOption& other : keras_class.other_defaults) {
      if (option.key == std::string(other.key)) {
        option = other;
      }
    }
  }
  return options;
}

std::string lower_case(std::string text) {
  for (char& letter : text) {
    letter =
        static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return text;
}

std::string read_keras_class_name(const Json& json, const std::string& where) {
  check_known_keys(
      json, {"module", "class_name", "config", "registered_name"}, where);
  if (json.contains("module") && !json.at("module").is_null()) {
    const std::string module =
        JsonValue<std::string>::read(json.at("module"), where + ".module");
    const std::string package = module.substr(0, module.find('.'));
    TESSERA_CHECK_VALUE(
        package == "keras" || package == "tf_keras" || package == "tensorflow",
        "[{}] module must be a module of Keras, such as keras.optimizers, but got '{}'. Your own class can't be translated. Use a native spec such as optim::Adam instead.",
        where,
        shorten(module));
  }
  return JsonValue<std::string>::read(
      field_of(json, "class_name", where), where + ".class_name");
}

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
