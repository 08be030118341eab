// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/saved_features.h>

#include "serialization/checkpoint_reader.h"
#include "serialization/features_json.h"

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>
#include <torch/serialize/archive.h>

#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace tessera {

namespace {

// Puts functions in the place of their names.
class Binder {
 public:
  explicit Binder(const Callables& callables) : callables_(callables) {}

  void bind(std::vector<TableConfig>& tables) {
    for (TableConfig& table : tables) {
      bind_table(table);
    }
    TORCH_CHECK_VALUE(
        missing_.empty(),
        "[saved_features] what was saved needs functions that a file can't "
        "hold:",
        missing_,
        "\nGive them in Callables, by these names.");
  }

 private:
  void bind_table(TableConfig& config) {
    where_ = "table '" + config.name + "'";
    const auto* callable = config.initializer
        ? std::get_if<initializers::Callable>(&*config.initializer)
        : nullptr;
    if (callable != nullptr) {
      config.initializer = find(
          callables_.initializers,
          "initializers",
          callable->name(),
          *config.initializer);
    }
    if (config.optimizer) {
      std::visit(
          [&](auto& spec) { bind_spec(spec); },
          static_cast<optim::OptimizerVariant&>(*config.optimizer));
    }
  }

  template <class Spec>
  void bind_spec(Spec& spec) {
    Spec::visit_fields(spec, [&](const char*, auto& field) {
      using Field = std::remove_cvref_t<decltype(field)>;
      if constexpr (std::is_same_v<Field, optim::LearningRate>) {
        if (!field.is_constant() && field.schedule() == nullptr) {
          field = find(
              callables_.learning_rates,
              "learning_rates",
              field.callable_name(),
              field);
        }
      } else if constexpr (std::is_same_v<Field, optim::CustomRule>) {
        field = find(callables_.rules, "rules", field.name(), field);
      } else if constexpr (std::is_same_v<Field, optim::SlotCreation>) {
        if (field.is_set()) {
          field = find(
              callables_.slot_creations, "slot_creations", field.name(), field);
        }
      }
    });
  }

  // `placeholder` when there is none, which is then noted.
  template <class Function>
  Function find(
      const std::map<std::string, Function>& functions,
      const char* kind,
      const std::string& name,
      const Function& placeholder) {
    const auto found = functions.find(name);
    if (found == functions.end()) {
      missing_ += c10::str("\n  ", where_, ": ", kind, " '", name, "'");
      return placeholder;
    }
    return found->second;
  }

  const Callables& callables_;
  std::string where_;
  std::string missing_;
};

Nest<FeatureConfig> features_from(
    const std::string& text,
    const Callables& callables) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(
        false, "[saved_features] the configuration is no JSON: ", error.what());
  }
  Binder binder(callables);
  return features_from_json(
      json, [&](std::vector<TableConfig>& tables) { binder.bind(tables); });
}

}  // namespace

Nest<FeatureConfig> saved_features(
    torch::serialize::InputArchive& archive,
    const Callables& callables) {
  c10::IValue config;
  TORCH_CHECK_VALUE(
      archive.try_read("config", config) && config.isString(),
      "[saved_features] the archive has no config: expected what TPUEmbedding "
      "saved. Of a model's archive, read the layer's by its name.");
  return features_from(config.toStringRef(), callables);
}

Nest<FeatureConfig> saved_features(
    const std::string& directory,
    const Callables& callables) {
  const std::vector<std::string> names = list_checkpoints(directory);
  TORCH_CHECK_VALUE(
      !names.empty(),
      "[saved_features] there is no checkpoint in '",
      directory,
      "'. Name the directory that was given to save_checkpoint().");
  return features_from(
      read_link(directory, names.back(), "[saved_features]").manifest.config,
      callables);
}

}  // namespace tessera
