// SPDX-License-Identifier: Apache-2.0
#include "optim/keras_writer.h"

#include "optim/keras_class_name.h"
#include "optim/keras_options.h"
#include "optim/keras_schedule.h"
#include "src/common/check.h"

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
