// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/optim/custom_rule.h>
#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizer.h>
#include <tessera/optim/slot_creation.h>
#include <tessera/tables/table_config.h>

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

// snippet: tests/docs/reference_layers_test.cpp Callables
/// The user's functions. The keys are the names that saved configurations have for them.
///
///   const Callables callables{
///       .learning_rates = {{"warm_up", optim::LearningRate("warm_up", rate)}}};
///   TPUEmbedding embedding(TPUEmbeddingOptions{
///       .features = saved_features("run/checkpoints", callables)});
///   embedding->load_checkpoint("run/checkpoints");
struct Callables {
  std::map<std::string, optim::LearningRate> learning_rates = {};
  std::map<std::string, Initializer> initializers = {};
  std::map<std::string, optim::CustomRule> rules = {};
  std::map<std::string, optim::SlotCreation> slot_creations = {};
};

namespace detail {

/// Puts the user's functions into a configuration that was read from JSON, in place of
/// the placeholders that have their names.
class CallableBinder {
 public:
  /// `callables` must outlive the binder.
  explicit CallableBinder(const Callables& callables) : callables_(callables) {}

  /// Replaces the placeholder in `value`, if it has one. `where` says what the value
  /// belongs to. The error of finish() shows it.
  void bind(optim::LearningRate& value, const std::string& where);
  void bind(optim::CustomRule& value, const std::string& where);
  void bind(optim::SlotCreation& value, const std::string& where);
  void bind(Initializer& value, const std::string& where);
  void bind(optim::OptimizerSpec& value, const std::string& where);
  /// Features that share a table still share it afterwards.
  void bind(Nest<FeatureConfig>& value, const std::string& where);

  template <class T>
  void bind(std::optional<T>& value, const std::string& where) {
    if (value) {
      bind(*value, where);
    }
  }
  template <class T>
  void bind(std::vector<T>& values, const std::string& where) {
    for (T& value : values) {
      bind(value, where);
    }
  }
  /// Binds the fields of an aggregate. Other types have nothing to bind.
  template <class T>
  void bind(T& value, const std::string& where) {
    if constexpr (HasFields<T>) {
      T::visit_fields(
          value, [&](const char*, auto& field) { bind(field, where); });
    }
  }

  /// Call this last.
  /// Errors:  c10::ValueError listing every function that was missing.
  void finish(const std::string& where) const;

 private:
  // Returns the function of this name. If there is none, adds the name to `missing_` and
  // returns `placeholder`.
  template <class Function>
  Function find(
      const std::map<std::string, Function>& functions,
      const std::string& what,
      const std::string& name,
      const Function& placeholder);

  const Callables& callables_;
  std::string missing_;
};

}  // namespace detail

}  // namespace tessera
