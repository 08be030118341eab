// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/keras.h>

#include "optim/keras_options.h"
#include "src/common/check.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace tessera::optim {

namespace {

constexpr const char* kWhere = "translate_keras_optimizer";

template <class Named>
std::string names_of(const std::vector<Named>& all) {
  std::string names;
  for (const Named& named : all) {
    names += (names.empty() ? "" : ", ") + std::string(named.name);
  }
  return names;
}

bool begins_with_any(
    const std::string& text,
    const std::vector<const char*>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* prefix) {
    return text.starts_with(prefix);
  });
}

// The keys around a config, and its class name.
std::string read_class_name(const Json& json, const std::string& where) {
  require_known_keys(
      json, {"module", "class_name", "config", "registered_name"}, where);
  if (json.contains("module") && !json.at("module").is_null()) {
    const std::string module =
        JsonValue<std::string>::read(json.at("module"), where + ".module");
    TESSERA_CHECK_VALUE(
        begins_with_any(module + ".", {"keras.", "tf_keras.", "tensorflow."}),
        "[{}] module must be one of Keras, such as keras.optimizers, but got '{}'. A class of your own can't be translated; write a native spec.",
        where,
        shorten(module));
  }
  return JsonValue<std::string>::read(
      require_key(json, "class_name", where), where + ".class_name");
}

// --- learning rates ----------------------------------------------------------

Schedule read_schedule(const Json& json, const std::string& where) {
  const std::string name = read_class_name(json, where);
  const auto& all = keras_schedules();
  const auto schedule =
      std::find_if(all.begin(), all.end(), [&](const KerasSchedule& candidate) {
        return candidate.name == name;
      });
  TESSERA_CHECK_VALUE(
      schedule != all.end(),
      "[{}] class_name must be one of {}, but got '{}'. For a schedule of your own, give a native spec a callable.",
      where,
      names_of(all),
      shorten(name));
  Json config = require_key(json, "config", where);
  const std::string inside = where + "." + name;
  require_kind(config.is_object(), config, "an object", inside);
  config.erase("name");
  for (const char* key : schedule->required) {
    require_key(config, key, inside);
  }
  return JsonValue<Schedule>::read(
      {{"class_name", name}, {"config", std::move(config)}}, where);
}

LearningRate read_learning_rate(const Json& json, const std::string& where) {
  if (json.is_number()) {
    return json.get<double>();
  }
  require_kind(json.is_object(), json, "a number or a schedule", where);
  return read_schedule(json, where);
}

// --- configs -----------------------------------------------------------------

// Whether Keras changes a row, or its slots, in an update without a gradient
// for it. Weight decay always does. kOnlySlots: the slots change as if the
// gradient were zero, but the row stays.
enum class IdleRows { kStay, kMove, kOnlySlots };

// What the option `decay` of legacy Keras reduces over time.
enum class LegacyDecay { kOfLearningRate, kOfMomentum };

// The options of one optimizer, checked against what its class knows and what
// the fidelity can honour.
class KerasConfig {
 public:
  KerasConfig(
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
    require_known_keys(config_, known, where_);
    for (const KerasOption& option : options_) {
      if (config_.contains(option.key)) {
        require_honourable(option, config_.at(option.key));
      }
    }
  }

  double number(const char* key) const {
    return JsonValue<double>::read(value(key), place(key));
  }
  bool flag(const char* key) const {
    return JsonValue<bool>::read(value(key), place(key));
  }
  bool is_legacy() const {
    return source_ == KerasSource::kLegacy;
  }
  bool is_tpu() const {
    return fidelity_ == Fidelity::kTpu;
  }
  const std::string& where() const {
    return where_;
  }

  // The spec with the options that all classes share.
  template <class Spec>
  Spec finish(
      Spec spec,
      IdleRows idle_rows,
      LegacyDecay legacy_decay = LegacyDecay::kOfLearningRate) const {
    spec.learning_rate = learning_rate(legacy_decay);
    TESSERA_CHECK_VALUE(
        idle_rows != IdleRows::kOnlySlots || fidelity_ != Fidelity::kExact,
        "[{}] can't be honoured with Fidelity::kExact: legacy Keras lets the slots of all rows decay, but moves the rows of the batch only. Use Fidelity::kLazy, or the optimizer of Keras 3.",
        where_);
    if (const auto limit = optional_number("clipvalue")) {
      TESSERA_CHECK_VALUE(
          *limit > 0.0,
          "[{}] clipvalue must be > 0, but got {}. Use null to switch it off.",
          where_,
          *limit);
      spec.clip_gradient_min = -*limit;
      spec.clip_gradient_max = *limit;
    }
    const double decay = optional_number("weight_decay").value_or(0.0);
    if (decay != 0.0) {
      spec.weight_decay_factor = decay;
      spec.multiply_weight_decay_factor_by_learning_rate = true;
      idle_rows = IdleRows::kMove;
    }
    const Json steps = value("gradient_accumulation_steps");
    if (!steps.is_null()) {
      const char* key = "gradient_accumulation_steps";
      spec.gradient_accumulation_steps =
          JsonValue<int64_t>::read(steps, place(key));
      TESSERA_CHECK_VALUE(
          spec.gradient_accumulation_steps >= 2,
          "[{}] gradient_accumulation_steps must be >= 2, but got {}. Use null to switch it off.",
          where_,
          spec.gradient_accumulation_steps);
    }
    const bool lazy =
        fidelity_ != Fidelity::kExact || idle_rows == IdleRows::kStay;
    if constexpr (requires { spec.lazy_adam; }) {
      spec.lazy_adam = lazy;
    } else {
      spec.lazy = lazy;
    }
    return spec;
  }

 private:
  std::string place(const char* key) const {
    return where_ + "." + key;
  }

  // null for an option that this source doesn't have.
  Json value(const char* key) const {
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

  std::optional<double> optional_number(const char* key) const {
    return JsonValue<std::optional<double>>::read(value(key), place(key));
  }

  LearningRate learning_rate(LegacyDecay legacy_decay) const {
    LearningRate rate =
        read_learning_rate(value("learning_rate"), place("learning_rate"));
    const bool decays =
        is_legacy() && legacy_decay == LegacyDecay::kOfLearningRate;
    const double decay = decays ? number("decay") : 0.0;
    if (decay == 0.0) {
      return rate;
    }
    TESSERA_CHECK_VALUE(
        rate.is_constant(),
        "[{}] decay = {} can't be combined with a schedule. Set decay to 0 and put it into the schedule.",
        where_,
        decay);
    return InverseTimeDecay{
        .initial_learning_rate = rate.value(0, "[" + where_ + "]"),
        .decay_steps = 1.0,
        .decay_rate = decay};
  }

  void require_honourable(const KerasOption& option, const Json& value) const {
    if (option.mapping == Mapping::kMapped ||
        option.mapping == Mapping::kWithoutEffect ||
        (option.mapping == Mapping::kNotOnTpu && !is_tpu())) {
      return;
    }
    const bool is_tpu_only = option.mapping == Mapping::kNotOnTpu;
    TESSERA_CHECK_VALUE(
        value == option.keras_default,
        "[{}] {} can't be honoured{}: it must be Keras's default {}, but is {}. {}",
        where_,
        option.key,
        is_tpu_only ? " with Fidelity::kTpu" : "",
        option.keras_default.dump(),
        shorten(value.dump(-1, ' ', false, Json::error_handler_t::replace)),
        is_tpu_only ? "Use Fidelity::kLazy or Fidelity::kExact."
                    : option.instead);
  }

  std::vector<KerasOption> options_;
  std::string where_;
  Json config_;
  KerasSource source_;
  Fidelity fidelity_;
};

// --- classes -----------------------------------------------------------------

OptimizerSpec translate_sgd(const KerasConfig& config) {
  const double momentum = config.number("momentum");
  const bool use_nesterov = config.flag("nesterov");
  if (momentum == 0.0) {
    return config.finish(SGD{}, IdleRows::kStay);
  }
  return config.finish(
      Momentum{
          .momentum = momentum,
          .use_nesterov = use_nesterov,
          .scale_momentum_by_learning_rate = true},
      config.is_legacy() ? IdleRows::kStay : IdleRows::kMove);
}

OptimizerSpec translate_adagrad(const KerasConfig& config) {
  const double epsilon = config.is_tpu() ? 0.0 : config.number("epsilon");
  return config.finish(
      Adagrad{
          .initial_accumulator_value =
              config.number("initial_accumulator_value"),
          .epsilon = epsilon,
          .epsilon_inside_sqrt = epsilon != 0.0 && !config.is_legacy()},
      IdleRows::kStay);
}

// AdamW, too: any Keras optimizer has its weight_decay.
OptimizerSpec translate_adam(const KerasConfig& config) {
  return config.finish(
      Adam{
          .beta_1 = config.number("beta_1"),
          .beta_2 = config.number("beta_2"),
          .epsilon = config.number("epsilon"),
          .sum_inside_sqrt = config.is_tpu(),
          .bias_correction = !config.is_tpu(),
          .amsgrad = config.flag("amsgrad")},
      IdleRows::kMove);
}

OptimizerSpec translate_ftrl(const KerasConfig& config) {
  return config.finish(
      FTRL{
          .learning_rate_power = config.number("learning_rate_power"),
          .l1_regularization_strength =
              config.number("l1_regularization_strength"),
          .l2_regularization_strength =
              config.number("l2_regularization_strength"),
          .beta = config.number("beta"),
          .initial_accumulator_value =
              config.number("initial_accumulator_value"),
          .l2_shrinkage_regularization_strength =
              config.number("l2_shrinkage_regularization_strength")},
      config.is_legacy() ? IdleRows::kStay : IdleRows::kMove);
}

OptimizerSpec translate_rmsprop(const KerasConfig& config) {
  const double momentum = config.number("momentum");
  // Legacy Keras has two implementations. With momentum: TensorFlow's fused
  // one, epsilon inside the root, rows of the batch. Without: all slots decay.
  const bool is_fused = config.is_legacy() && momentum > 0.0;
  return config.finish(
      RMSprop{
          .rho = config.number("rho"),
          .momentum = momentum,
          .epsilon = config.number("epsilon"),
          .centered = config.flag("centered"),
          .epsilon_inside_sqrt = is_fused || !config.is_legacy()},
      is_fused ? IdleRows::kStay : IdleRows::kMove);
}

OptimizerSpec translate_adadelta(const KerasConfig& config) {
  return config.finish(
      Adadelta{
          .rho = config.number("rho"), .epsilon = config.number("epsilon")},
      config.is_legacy() ? IdleRows::kStay : IdleRows::kMove);
}

OptimizerSpec translate_lion(const KerasConfig& config) {
  return config.finish(
      Lion{
          .beta_1 = config.number("beta_1"), .beta_2 = config.number("beta_2")},
      IdleRows::kMove);
}

OptimizerSpec translate_adamax(const KerasConfig& config) {
  return config.finish(
      Adamax{
          .beta_1 = config.number("beta_1"),
          .beta_2 = config.number("beta_2"),
          .epsilon = config.number("epsilon")},
      config.is_legacy() ? IdleRows::kStay : IdleRows::kMove);
}

OptimizerSpec translate_nadam(const KerasConfig& config) {
  return config.finish(
      Nadam{
          .beta_1 = config.number("beta_1"),
          .beta_2 = config.number("beta_2"),
          .epsilon = config.number("epsilon"),
          .schedule_decay = config.is_legacy() ? config.number("decay") : 1.0},
      config.is_legacy() ? IdleRows::kOnlySlots : IdleRows::kMove,
      LegacyDecay::kOfMomentum);
}

// In the order of keras_classes().
constexpr std::array<OptimizerSpec (*)(const KerasConfig&), 10> kTranslate{
    translate_sgd,
    translate_adagrad,
    translate_adam,
    translate_ftrl,
    translate_adam,
    translate_rmsprop,
    translate_adadelta,
    translate_lion,
    translate_adamax,
    translate_nadam};

// The index in keras_classes().
size_t find_class(const std::string& name, KerasSource source, bool is_tpu) {
  std::vector<KerasClass> usable;
  const auto& all = keras_classes();
  TORCH_INTERNAL_ASSERT(all.size() == kTranslate.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_usable = (!is_tpu || all[i].is_on_tpu) &&
        (source == KerasSource::kCurrent || all[i].is_in_legacy);
    if (is_usable && all[i].name == name) {
      return i;
    }
    if (is_usable) {
      usable.push_back(all[i]);
    }
  }
  const bool is_for_others =
      is_tpu && std::any_of(all.begin(), all.end(), [&](const auto& other) {
        return other.name == name;
      });
  C10_THROW_ERROR(
      ValueError,
      c10::str(
          "[",
          kWhere,
          "] class_name must be one of ",
          names_of(usable),
          is_tpu ? " with Fidelity::kTpu" : "",
          ", but got '",
          shorten(name),
          "'. ",
          is_for_others ? "Use Fidelity::kLazy or Fidelity::kExact."
                        : "Use one of them, or a native spec."));
}

// Configs without a module are older than the new optimizers, unless they hold
// a key of those.
KerasSource source_of(const Json& json, const Json& config) {
  if (config.contains("is_legacy_optimizer") &&
      config.at("is_legacy_optimizer") == true) {
    return KerasSource::kLegacy;
  }
  if (json.contains("module") && json.at("module").is_string()) {
    const bool is_legacy = json.at("module").get<std::string>().find(
                               ".legacy") != std::string::npos;
    return is_legacy ? KerasSource::kLegacy : KerasSource::kCurrent;
  }
  return config.contains("decay") ? KerasSource::kLegacy
                                  : KerasSource::kCurrent;
}

struct NamedSpec {
  const char* name = "";
  OptimizerSpec spec = {};
};

// The first four are upstream's names; the others are Keras's names.
const std::vector<NamedSpec>& named_specs() {
  static const std::vector<NamedSpec> specs{
      {"sgd", SGD{}},
      {"adagrad", Adagrad{}},
      {"adam", Adam{}},
      {"ftrl", FTRL{}},
      {"rmsprop", RMSprop{}},
      {"adadelta", Adadelta{}},
      {"lion", Lion{}},
      {"adamax", Adamax{}},
      {"nadam", Nadam{}}};
  return specs;
}

OptimizerSpec translate_name(const std::string& name) {
  const auto& all = named_specs();
  const auto named =
      std::find_if(all.begin(), all.end(), [&](const NamedSpec& candidate) {
        return candidate.name == name;
      });
  TESSERA_CHECK_VALUE(
      named != all.end(),
      "[{}] the optimizer's name must be one of {}, but got '{}'. Use one of them, the JSON of a Keras optimizer, or a native spec.",
      kWhere,
      names_of(all),
      shorten(name));
  return named->spec;
}

}  // namespace

OptimizerSpec translate_keras_optimizer(const Json& json, Fidelity fidelity) {
  if (json.is_string()) {
    return translate_name(json.get<std::string>());
  }
  check_depth(json, kWhere);
  const std::string name = read_class_name(json, kWhere);
  const Json config = require_key(json, "config", kWhere);
  require_kind(config.is_object(), config, "an object", kWhere);
  const KerasSource source = source_of(json, config);
  const size_t index = find_class(name, source, fidelity == Fidelity::kTpu);
  const KerasConfig read(keras_classes()[index], source, fidelity, config);
  OptimizerSpec spec = kTranslate[index](read);
  validate(spec, "[" + read.where() + "]");
  return spec;
}

OptimizerSpec translate_keras_optimizer(
    const nlohmann::json& config,
    Fidelity fidelity) {
  check_depth(config, kWhere);  // The copy is recursive.
  return translate_keras_optimizer(Json(config), fidelity);
}

OptimizerSpec translate_keras_optimizer(
    const std::string& text,
    Fidelity fidelity) {
  const auto first = std::find_if(text.begin(), text.end(), [](char letter) {
    return std::isspace(static_cast<unsigned char>(letter)) == 0;
  });
  if (first == text.end() || *first != '{') {
    return translate_name(text);
  }
  return translate_keras_optimizer(
      parse_json(text, c10::str("[", kWhere, "]")), fidelity);
}

OptimizerSpec translate_keras_optimizer(const char* text, Fidelity fidelity) {
  TESSERA_CHECK_VALUE(
      text != nullptr,
      "[{}] expected a name or JSON, but got a null pointer.",
      kWhere);
  return translate_keras_optimizer(std::string(text), fidelity);
}

OptimizerSpec::OptimizerSpec(const char* keras)
    : OptimizerSpec(translate_keras_optimizer(keras)) {}
OptimizerSpec::OptimizerSpec(const std::string& keras)
    : OptimizerSpec(translate_keras_optimizer(keras)) {}
OptimizerSpec::OptimizerSpec(const nlohmann::json& keras)
    : OptimizerSpec(translate_keras_optimizer(keras)) {}
OptimizerSpec::OptimizerSpec(const nlohmann::ordered_json& keras)
    : OptimizerSpec(translate_keras_optimizer(keras)) {}

}  // namespace tessera::optim
