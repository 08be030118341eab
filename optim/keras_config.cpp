// SPDX-License-Identifier: Apache-2.0
#include "optim/keras_config.h"

#include "optim/keras_schedule.h"
#include "src/common/check.h"

#include <utility>

namespace tessera::optim {

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

Json KerasConfig::value(const char* key) const {
  if (config_.contains(key)) {
    return config_.at(key);
  }
  for (const KerasOption& option : options_) {
    if (option.key == std::string(key)) {
      return option.keras_default;
    }
  }
  return nullptr;
}

std::optional<double> KerasConfig::optional_number(const char* key) const {
  return JsonValue<std::optional<double>>::read(value(key), where_of(key));
}

std::string KerasConfig::where_of(const char* key) const {
  return where_ + "." + key;
}

}  // namespace tessera::optim
