// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/keras.h>

#include "optim/keras_options.h"
#include "src/common/check.h"

#include <cctype>
#include <string>
#include <utility>
#include <variant>

namespace tessera::optim {

namespace {

// Fills the config of one Keras class, refusing what that can't say.
class KerasWriter {
 public:
  explicit KerasWriter(const OptimizerSpec& optimizer)
      : where_("[to_keras] " + name_of(optimizer) + ": ") {}

  void require(bool is_expressible, const char* what) const {
    TESSERA_CHECK_VALUE(
        is_expressible, "{}{} has no counterpart in Keras 3.", where_, what);
  }

  // {"module": ..., "class_name": ..., "config": ...} with Keras's defaults and
  // the options that all specs share.
  template <class Spec>
  Json begin(const char* class_name, const Spec& spec) const {
    Json config = Json::object();
    for (const KerasClass& keras_class : keras_classes()) {
      if (keras_class.name == std::string(class_name)) {
        config = defaults_of(keras_class);
      }
    }
    config["name"] = name_in_keras(class_name);
    config["learning_rate"] = learning_rate(spec.learning_rate);
    require(
        spec.use_gradient_accumulation, "use_gradient_accumulation = false");
    require(
        !spec.clip_weight_min && !spec.clip_weight_max,
        "clip_weight_min or clip_weight_max");
    if (spec.clip_gradient_min || spec.clip_gradient_max) {
      const double limit = spec.clip_gradient_max.value_or(0.0);
      require(
          limit > 0.0 && spec.clip_gradient_min == -limit,
          "a pair of clip_gradient_min and clip_gradient_max other than -c and "
          "c > 0");
      config["clipvalue"] = limit;
    }
    if (const double factor = spec.weight_decay_factor.value_or(0.0);
        factor != 0.0) {
      require(
          spec.multiply_weight_decay_factor_by_learning_rate,
          "weight decay without multiply_weight_decay_factor_by_learning_rate");
      config["weight_decay"] = factor;
    }
    if (spec.gradient_accumulation_steps > 1) {
      config["gradient_accumulation_steps"] = spec.gradient_accumulation_steps;
    }
    if constexpr (requires { spec.slot_creation; }) {
      require(!spec.slot_creation.is_set(), "slot_creation");
    }
    return {
        {"module", "keras.optimizers"},
        {"class_name", class_name},
        {"config", std::move(config)},
        {"registered_name", nullptr}};
  }

 private:
  static Json defaults_of(const KerasClass& keras_class) {
    Json config = Json::object();
    for (const KerasOption& option :
         options_of(keras_class, KerasSource::kCurrent)) {
      // The two that only tf_keras knows.
      const std::string key = option.key;
      if (key != "jit_compile" && key != "is_legacy_optimizer") {
        config[key] = option.keras_default;
      }
    }
    return config;
  }

  // "adam": Keras 3's own default, but for SGD.
  static std::string name_in_keras(const std::string& class_name) {
    std::string name = class_name;
    if (name != "SGD") {
      for (char& letter : name) {
        letter =
            static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
      }
    }
    return name;
  }

  Json learning_rate(const LearningRate& rate) const {
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

  std::string where_;
};

Json write(const SGD& spec, const KerasWriter& writer) {
  return writer.begin("SGD", spec);
}

Json write(const Momentum& spec, const KerasWriter& writer) {
  writer.require(
      spec.scale_momentum_by_learning_rate,
      "scale_momentum_by_learning_rate = false");
  Json json = writer.begin("SGD", spec);
  json["config"]["momentum"] = spec.momentum;
  json["config"]["nesterov"] = spec.use_nesterov;
  return json;
}

Json write(const Adagrad& spec, const KerasWriter& writer) {
  writer.require(
      spec.epsilon == 0.0 || spec.epsilon_inside_sqrt,
      "epsilon_inside_sqrt = false");
  Json json = writer.begin("Adagrad", spec);
  json["config"]["initial_accumulator_value"] = spec.initial_accumulator_value;
  json["config"]["epsilon"] = spec.epsilon;
  return json;
}

Json write(const Adam& spec, const KerasWriter& writer) {
  writer.require(spec.bias_correction, "bias_correction = false");
  writer.require(!spec.sum_inside_sqrt, "sum_inside_sqrt = true");
  const bool decays = spec.weight_decay_factor.value_or(0.0) != 0.0;
  Json json = writer.begin(decays ? "AdamW" : "Adam", spec);
  json["config"]["beta_1"] = spec.beta_1;
  json["config"]["beta_2"] = spec.beta_2;
  json["config"]["epsilon"] = spec.epsilon;
  json["config"]["amsgrad"] = spec.amsgrad;
  return json;
}

Json write(const FTRL& spec, const KerasWriter& writer) {
  writer.require(
      !spec.multiply_linear_by_learning_rate,
      "multiply_linear_by_learning_rate = true");
  writer.require(!spec.keep_initial_weight, "keep_initial_weight = true");
  Json json = writer.begin("Ftrl", spec);
  Json& config = json["config"];
  config["learning_rate_power"] = spec.learning_rate_power;
  config["initial_accumulator_value"] = spec.initial_accumulator_value;
  config["l1_regularization_strength"] = spec.l1_regularization_strength;
  config["l2_regularization_strength"] = spec.l2_regularization_strength;
  config["l2_shrinkage_regularization_strength"] =
      spec.l2_shrinkage_regularization_strength;
  config["beta"] = spec.beta;
  return json;
}

Json write(const RMSprop& spec, const KerasWriter& writer) {
  writer.require(spec.epsilon_inside_sqrt, "epsilon_inside_sqrt = false");
  Json json = writer.begin("RMSprop", spec);
  json["config"]["rho"] = spec.rho;
  json["config"]["momentum"] = spec.momentum;
  json["config"]["epsilon"] = spec.epsilon;
  json["config"]["centered"] = spec.centered;
  return json;
}

Json write(const Adadelta& spec, const KerasWriter& writer) {
  Json json = writer.begin("Adadelta", spec);
  json["config"]["rho"] = spec.rho;
  json["config"]["epsilon"] = spec.epsilon;
  return json;
}

Json write(const Lion& spec, const KerasWriter& writer) {
  Json json = writer.begin("Lion", spec);
  json["config"]["beta_1"] = spec.beta_1;
  json["config"]["beta_2"] = spec.beta_2;
  return json;
}

Json write(const Adamax& spec, const KerasWriter& writer) {
  Json json = writer.begin("Adamax", spec);
  json["config"]["beta_1"] = spec.beta_1;
  json["config"]["beta_2"] = spec.beta_2;
  json["config"]["epsilon"] = spec.epsilon;
  return json;
}

Json write(const Nadam& spec, const KerasWriter& writer) {
  writer.require(spec.schedule_decay == 1.0, "schedule_decay other than 1");
  Json json = writer.begin("Nadam", spec);
  json["config"]["beta_1"] = spec.beta_1;
  json["config"]["beta_2"] = spec.beta_2;
  json["config"]["epsilon"] = spec.epsilon;
  return json;
}

// Keras's Lamb takes the norms of a whole variable, LAMB of a row.
template <class Spec>
Json write(const Spec&, const KerasWriter& writer) {
  writer.require(false, "the rule");
  return nullptr;
}

}  // namespace

Json to_keras(const OptimizerSpec& optimizer) {
  validate(optimizer, "[to_keras]");
  const KerasWriter writer(optimizer);
  return std::visit(
      [&](const auto& spec) { return write(spec, writer); }, optimizer);
}

}  // namespace tessera::optim
