// SPDX-License-Identifier: Apache-2.0
#include "optim/keras_config.h"

#include "src/common/check.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace tessera::optim {

namespace {

Json defaults_of(const KerasClass& keras_class) {
  Json config = Json::object();
  for (const KerasOption& option :
       options_of(keras_class, KerasSource::kCurrent)) {
    // Only tf_keras has these two options.
    const std::string key = option.key;
    if (key != "jit_compile" && key != "is_legacy_optimizer") {
      config[key] = option.keras_default;
    }
  }
  return config;
}

// The default name of an optimizer in Keras 3, such as "adam". SGD keeps its capitals.
std::string name_in_keras(const std::string& class_name) {
  return class_name == "SGD" ? class_name : lower_case(class_name);
}

}  // namespace

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

KerasConfig::Shared KerasConfig::read_shared(
    IdleRows idle_rows,
    LegacyDecay legacy_decay) const {
  Shared shared{.learning_rate = read_learning_rate(legacy_decay)};
  TESSERA_CHECK_VALUE(
      idle_rows != IdleRows::kOnlySlotsUpdated || fidelity_ != Fidelity::kExact,
      "[{}] the legacy optimizer is not supported with Fidelity::kExact, because it decays the slots of all rows, but updates the weights of only the rows in the batch. Use Fidelity::kLazy, or the optimizer of Keras 3.",
      where_);
  shared.clip = optional_number("clipvalue");
  TESSERA_CHECK_VALUE(
      !shared.clip || *shared.clip > 0.0,
      "[{}] clipvalue must be > 0, but got {}. Use null to switch it off.",
      where_,
      shared.clip.value_or(0.0));
  shared.weight_decay = optional_number("weight_decay").value_or(0.0);
  if (shared.weight_decay != 0.0) {
    idle_rows = IdleRows::kUpdated;
  }
  const char* key = "gradient_accumulation_steps";
  const Json steps = value(key);
  if (!steps.is_null()) {
    shared.gradient_accumulation_steps =
        JsonValue<int64_t>::read(steps, where_of(key));
    TESSERA_CHECK_VALUE(
        shared.gradient_accumulation_steps >= 2,
        "[{}] gradient_accumulation_steps must be >= 2, but got {}. Use null to switch it off.",
        where_,
        shared.gradient_accumulation_steps);
  }
  shared.is_lazy =
      fidelity_ != Fidelity::kExact || idle_rows == IdleRows::kUnchanged;
  return shared;
}

LearningRate KerasConfig::read_learning_rate(LegacyDecay legacy_decay) const {
  LearningRate learning_rate = read_keras_learning_rate(
      value("learning_rate"), where_of("learning_rate"));
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

Json KerasWriter::begin(const char* class_name, const CommonOptions& options)
    const {
  Json config = Json::object();
  for (const KerasClass& keras_class : keras_classes()) {
    if (keras_class.name == std::string(class_name)) {
      config = defaults_of(keras_class);
    }
  }
  config["name"] = name_in_keras(class_name);
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
  return write_keras_schedule(*schedule);
}

}  // namespace tessera::optim
