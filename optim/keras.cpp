// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/keras.h>

#include <tessera/optim/optimizers.h>

#include "optim/keras_config.h"
#include "optim/optimizer_definition.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::optim {

namespace {

constexpr const char* kWhere = "translate_keras_optimizer";

// Calls `visit` with each spec, which has its defaults.
template <class Visit, class... Specs>
void for_each_spec(
    std::in_place_type_t<std::variant<Specs...>> /*variant*/,
    Visit visit) {
  (visit(Specs{}), ...);
}

// Finds the class of this name. It must exist in `source` and, if `is_tpu`, on the TPU.
const KerasClass& find_class(
    const std::string& name,
    KerasSource source,
    bool is_tpu) {
  std::vector<KerasClass> usable;
  const auto& all = keras_classes();
  for (const KerasClass& keras_class : all) {
    const bool is_usable = (!is_tpu || keras_class.is_on_tpu) &&
        (source == KerasSource::kCurrent || keras_class.is_in_legacy);
    if (is_usable && keras_class.name == name) {
      return keras_class;
    }
    if (is_usable) {
      usable.push_back(keras_class);
    }
  }
  const bool is_in_other_fidelities =
      is_tpu && std::ranges::find(all, name, &KerasClass::name) != all.end();
  TESSERA_CHECK_VALUE(
      false,
      "[translate_keras_optimizer] class_name must be one of {}{}, but got '{}'. {}",
      join_names(usable, &KerasClass::name),
      is_tpu ? " with Fidelity::kTpu" : "",
      shorten(name),
      is_in_other_fidelities
          ? "Use Fidelity::kLazy or Fidelity::kExact."
          : "Use one of them, or a native spec such as optim::Adam.");
}

// Decides whether legacy Keras wrote the config. A config without a module counts as
// legacy if it has `decay`, which the new optimizers do not have.
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

// Returns the spec with this name, with its defaults. Names are in lower case, and only
// optimizers that Keras also has are known.
OptimizerSpec translate_name(const std::string& name) {
  std::vector<std::string> names;
  std::optional<OptimizerSpec> named;
  for_each_spec(std::in_place_type<AllSpecs>, [&](const auto& defaults) {
    if (!definition_of(defaults)->keras_classes().empty()) {
      names.push_back(lower_case(name_of(defaults)));
      if (names.back() == name) {
        named = defaults;
      }
    }
  });
  TESSERA_CHECK_VALUE(
      named,
      "[translate_keras_optimizer] the optimizer's name must be one of {}, but got '{}'. Use one of them, the JSON of a Keras optimizer, or a native spec such as optim::Adam.",
      join_names(names),
      shorten(name));
  return *named;
}

}  // namespace

const std::vector<KerasClass>& keras_classes() {
  static const std::vector<KerasClass> classes = [] {
    std::vector<KerasClass> all;
    for_each_spec(std::in_place_type<AllSpecs>, [&](const auto& defaults) {
      for (KerasClass& own : definition_of(defaults)->keras_classes()) {
        all.push_back(std::move(own));
      }
    });
    std::ranges::stable_partition(all, &KerasClass::is_on_tpu);
    return all;
  }();
  return classes;
}

OptimizerSpec translate_keras_optimizer(const Json& json, Fidelity fidelity) {
  if (json.is_string()) {
    return translate_name(json.get<std::string>());
  }
  check_depth(json, kWhere);
  const std::string name = read_keras_class_name(json, kWhere);
  const Json config = field_of(json, "config", kWhere);
  check_kind(
      config.is_object(),
      config,
      "an object with the options",
      c10::str(kWhere, ".config"));
  const KerasSource source = source_of(json, config);
  const KerasClass& keras_class =
      find_class(name, source, fidelity == Fidelity::kTpu);
  const KerasConfig read(keras_class, source, fidelity, config);
  OptimizerSpec spec = keras_class.translate(read);
  validate(spec, "[" + read.where() + "]");
  return spec;
}

OptimizerSpec translate_keras_optimizer(
    const nlohmann::json& config,
    Fidelity fidelity) {
  check_depth(config, kWhere);  // before the copy, which is recursive
  return translate_keras_optimizer(Json(config), fidelity);
}

OptimizerSpec translate_keras_optimizer(
    const std::string& text,
    Fidelity fidelity) {
  const auto first = std::ranges::find_if(text, [](char letter) {
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
      "[translate_keras_optimizer] expected a name or JSON, but got a null pointer. Pass a name such as 'adam'.");
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

Json to_keras(const OptimizerSpec& optimizer) {
  validate(optimizer, "[to_keras]");
  const KerasWriter writer(name_of(optimizer));
  return std::visit(
      [&](const auto& spec) { return definition_of(spec)->to_keras(writer); },
      optimizer.variant());
}

}  // namespace tessera::optim
