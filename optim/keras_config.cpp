// SPDX-License-Identifier: Apache-2.0
// Reads and writes the configs of Keras's optimizers. The defaults here and in
// optim/optimizers/ are those of the constructors in keras.optimizers (3.x),
// tf_keras.optimizers and tf_keras.optimizers.legacy, which agree. Fidelity::kTpu
// follows translate_keras_optimizer of TensorFlow Recommenders.
#include "optim/keras_config.h"

#include <tessera/optim/optimizer_json.h>

#include "src/common/check.h"
#include "src/common/names.h"

#include <algorithm>
#include <cctype>
#include <type_traits>
#include <utility>
#include <variant>

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

Schedule read_schedule(const Json& json, const std::string& where) {
  static const std::vector<KerasSchedule> all{
      {"ExponentialDecay",
       {"initial_learning_rate", "decay_steps", "decay_rate"}},
      {"PiecewiseConstantDecay", {"boundaries", "values"}},
      {"PolynomialDecay", {"initial_learning_rate", "decay_steps"}},
      {"InverseTimeDecay",
       {"initial_learning_rate", "decay_steps", "decay_rate"}},
      {"CosineDecay", {"initial_learning_rate", "decay_steps"}},
      {"CosineDecayRestarts", {"initial_learning_rate", "first_decay_steps"}}};
  check_kind(json.is_object(), json, "a number or a schedule", where);
  const std::string name = read_keras_class_name(json, where);
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

// All options of a class, in the order in which Keras 3 writes them.
std::vector<KerasOption> options_of(
    const KerasClass& keras_class,
    KerasSource source) {
  const std::vector<KerasOption>& own = keras_class.options;
  std::vector<KerasOption> options =
      source == KerasSource::kLegacy ? legacy_options() : current_options();
  options.insert(
      options.begin(),
      {{"name", nullptr, Mapping::kWithoutEffect}, own.front()});
  options.insert(options.end(), own.begin() + 1, own.end());
  for (KerasOption& option : options) {
    for (const KerasOption& other : keras_class.other_defaults) {
      if (option.key == std::string(other.key)) {
        option = other;
      }
    }
  }
  return options;
}

}  // namespace

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

KerasConfig::KerasConfig(
    const KerasClass& keras_class,
    KerasSource source,
    Fidelity fidelity,
    Json config)
    : options_(options_of(keras_class, source)),
      where_(std::string("Keras ") + keras_class.name),
      config_(std::move(config)),
      source_(source),
      fidelity_(fidelity) {
  if (source == KerasSource::kCurrent) {
    // Only tf_keras writes these two options.
    options_.push_back({"jit_compile", false, Mapping::kWithoutEffect});
    options_.push_back({"is_legacy_optimizer", false, Mapping::kWithoutEffect});
  }
  std::vector<std::string> known;
  for (const KerasOption& option : options_) {
    known.emplace_back(option.key);
  }
  check_known_keys(config_, known, where_);
  for (const KerasOption& option : options_) {
    if (config_.contains(option.key)) {
      check_supported(option, config_.at(option.key));
    }
  }
}

OptimizerSpec KerasConfig::finish(
    OptimizerSpec spec,
    IdleRows idle_rows,
    LegacyDecay legacy_decay) const {
  modify(spec, [&](auto& held) {
    held.visit_fields(
        held, [&](const char* key, auto& field) { read(key, field); });
  });
  const LearningRate learning_rate = read_learning_rate(legacy_decay);
  TESSERA_CHECK_VALUE(
      idle_rows != IdleRows::kOnlySlotsUpdated || fidelity_ != Fidelity::kExact,
      "[{}] the legacy optimizer is not supported with Fidelity::kExact, because it decays the slots of all rows, but updates the weights of only the rows in the batch. Use Fidelity::kLazy, or the optimizer of Keras 3.",
      where_);
  const std::optional<double> clip = optional_number("clipvalue");
  TESSERA_CHECK_VALUE(
      !clip || *clip > 0.0,
      "[{}] clipvalue must be > 0, but got {}. Use null to switch it off.",
      where_,
      clip.value_or(0.0));
  const double weight_decay = optional_number("weight_decay").value_or(0.0);
  if (weight_decay != 0.0) {
    idle_rows = IdleRows::kUpdated;
  }
  const char* key = "gradient_accumulation_steps";
  const auto steps =
      JsonValue<std::optional<int64_t>>::read(value(key), where_of(key));
  TESSERA_CHECK_VALUE(
      steps.value_or(2) >= 2,
      "[{}] gradient_accumulation_steps must be >= 2, but got {}. Use null to switch it off.",
      where_,
      steps.value_or(2));
  const bool is_lazy =
      fidelity_ != Fidelity::kExact || idle_rows == IdleRows::kUnchanged;
  modify(spec, [&](auto& held) {
    held.learning_rate = learning_rate;
    if (clip) {
      held.clip_gradient_min = -*clip;
      held.clip_gradient_max = *clip;
    }
    if (weight_decay != 0.0) {
      held.weight_decay_factor = weight_decay;
      held.multiply_weight_decay_factor_by_learning_rate = true;
    }
    held.gradient_accumulation_steps = steps.value_or(1);
    if constexpr (requires { held.lazy_adam; }) {
      held.lazy_adam = is_lazy;
    } else if constexpr (requires { held.lazy; }) {
      held.lazy = is_lazy;
    }
  });
  return spec;
}

LearningRate KerasConfig::read_learning_rate(LegacyDecay legacy_decay) const {
  const Json rate = value("learning_rate");
  const LearningRate learning_rate = rate.is_number()
      ? LearningRate(rate.get<double>())
      : read_schedule(rate, where_of("learning_rate"));
  const bool decays =
      is_legacy() && legacy_decay == LegacyDecay::kOfLearningRate;
  const double decay = decays ? number("decay") : 0.0;
  if (decay == 0.0) {
    return learning_rate;
  }
  TESSERA_CHECK_VALUE(
      learning_rate.is_constant(),
      "[{}] decay = {} can't be combined with a schedule. Set decay to 0, and let the schedule decay the learning rate.",
      where_,
      decay);
  return InverseTimeDecay{
      .initial_learning_rate = learning_rate.value(0, "[" + where_ + "]"),
      .decay_steps = 1.0,
      .decay_rate = decay};
}

void KerasConfig::check_supported(const KerasOption& option, const Json& value)
    const {
  if (option.mapping == Mapping::kMapped ||
      option.mapping == Mapping::kWithoutEffect ||
      (option.mapping == Mapping::kNotOnTpu && !is_tpu())) {
    return;
  }
  const bool is_tpu_only = option.mapping == Mapping::kNotOnTpu;
  TESSERA_CHECK_VALUE(
      value == option.keras_default,
      "[{}] {} is not supported{}: it must be Keras's default {}, but is {}. {}",
      where_,
      option.key,
      is_tpu_only ? " with Fidelity::kTpu" : "",
      option.keras_default.dump(),
      shorten(value.dump(-1, ' ', false, Json::error_handler_t::replace)),
      is_tpu_only ? "Use Fidelity::kLazy or Fidelity::kExact."
                  : option.instead);
}

bool KerasConfig::is_read(const char* key) const {
  const KerasOption* option = find(key);
  return option != nullptr &&
      (option->mapping == Mapping::kMapped ||
       (option->mapping == Mapping::kNotOnTpu && !is_tpu()));
}

const KerasOption* KerasConfig::find(std::string_view key) const {
  const auto found = std::ranges::find(options_, key, &KerasOption::key);
  return found == options_.end() ? nullptr : &*found;
}

Json KerasConfig::value(const char* key) const {
  if (config_.contains(key)) {
    return config_.at(key);
  }
  const KerasOption* option = find(key);
  return option == nullptr ? Json(nullptr) : option->keras_default;
}

std::optional<double> KerasConfig::optional_number(const char* key) const {
  return JsonValue<std::optional<double>>::read(value(key), where_of(key));
}

std::string KerasConfig::where_of(const char* key) const {
  return where_ + "." + key;
}

KerasWriter::KerasWriter(const std::string& name)
    : where_("[to_keras] " + name + ": ") {}

void KerasWriter::require(bool is_expressible, const char* what) const {
  TESSERA_CHECK_VALUE(
      is_expressible,
      "{}{} has no counterpart in Keras 3. Change the spec, or save it as JSON with tessera::to_json().",
      where_,
      what);
}

Json KerasWriter::write(const char* class_name, const OptimizerSpec& spec)
    const {
  const CommonOptions options = common_options(spec);
  const std::string name = class_name;
  Json config = Json::object();
  for (const KerasOption& option : options_of(
           *std::ranges::find(keras_classes(), name, &KerasClass::name),
           KerasSource::kCurrent)) {
    config[option.key] = option.keras_default;
  }
  // By default, Keras 3 calls an Adam "adam". SGD keeps its capitals.
  config["name"] = name == "SGD" ? name : lower_case(name);
  config["learning_rate"] = learning_rate(options.learning_rate);
  require(
      options.use_gradient_accumulation, "use_gradient_accumulation = false");
  require(!options.clips_weight(), "clip_weight_min or clip_weight_max");
  if (options.clips_gradient()) {
    const double limit = options.clip_gradient_max.value_or(0.0);
    require(
        limit > 0.0 && options.clip_gradient_min == -limit,
        "a pair of clip_gradient_min and clip_gradient_max other than -c and "
        "c > 0");
    config["clipvalue"] = limit;
  }
  if (const double factor = options.weight_decay_factor.value_or(0.0);
      factor != 0.0) {
    require(
        options.multiply_weight_decay_factor_by_learning_rate,
        "weight decay without multiply_weight_decay_factor_by_learning_rate");
    config["weight_decay"] = factor;
  }
  if (options.gradient_accumulation_steps > 1) {
    config["gradient_accumulation_steps"] = options.gradient_accumulation_steps;
  }
  require(!options.slot_creation.is_set(), "slot_creation");
  const auto write_field = [&]<class Field>(
                               const char* key, const Field& field) {
    if constexpr (
        std::is_same_v<Field, double> || std::is_same_v<Field, bool>) {
      if (config.contains(key)) {
        config[key] = field;
      }
    }
  };
  std::visit(
      [&](const auto& held) { held.visit_fields(held, write_field); },
      spec.variant());
  return {
      {"module", "keras.optimizers"},
      {"class_name", class_name},
      {"config", std::move(config)},
      {"registered_name", nullptr}};
}

Json KerasWriter::learning_rate(const LearningRate& rate) const {
  if (rate.is_constant()) {
    return rate.value(0, where_);
  }
  const Schedule* schedule = rate.schedule();
  require(schedule != nullptr, "a callable learning_rate");
  require(!std::holds_alternative<Warmup>(*schedule), "the schedule Warmup");
  const Json native = JsonValue<Schedule>::write(*schedule);
  Json config = native.at("config");
  config["name"] = native.at("class_name");
  return {
      {"module", "keras.optimizers.schedules"},
      {"class_name", native.at("class_name")},
      {"config", std::move(config)},
      {"registered_name", nullptr}};
}

}  // namespace tessera::optim
