// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/callables.h>

#include <tessera/common/shorten.h>
#include <tessera/optim/optimizers.h>

#include <utility>

#include "src/common/check.h"

namespace tessera::detail {

template <class Function>
Function CallableBinder::find(
    const std::map<std::string, Function>& functions,
    const std::string& what,
    const std::string& name,
    const Function& placeholder) {
  const auto found = functions.find(name);
  if (found == functions.end()) {
    missing_ += c10::str("\n  ", what, " '", shorten(name), "'");
    return placeholder;
  }
  return found->second;
}

void CallableBinder::bind(
    optim::LearningRate& value,
    const std::string& where) {
  if (!value.is_constant() && value.schedule() == nullptr) {
    value = find(
        callables_.learning_rates,
        where + ": learning_rates",
        value.callable_name(),
        value);
  }
}

void CallableBinder::bind(optim::CustomRule& value, const std::string& where) {
  if (value.is_set()) {
    value = find(callables_.rules, where + ": rules", value.name(), value);
  }
}

void CallableBinder::bind(
    optim::SlotCreation& value,
    const std::string& where) {
  if (value.is_set()) {
    value = find(
        callables_.slot_creations,
        where + ": slot_creations",
        value.name(),
        value);
  }
}

void CallableBinder::bind(Initializer& value, const std::string& where) {
  if (const auto* callable = std::get_if<initializers::Callable>(&value)) {
    const std::string name = callable->name();
    value =
        find(callables_.initializers, where + ": initializers", name, value);
  }
}

void CallableBinder::bind(
    optim::OptimizerSpec& value,
    const std::string& where) {
  optim::modify(value, [&](auto& spec) { bind(spec, where); });
}

void CallableBinder::bind(
    Nest<FeatureConfig>& value,
    const std::string& where) {
  std::map<TablePtr, TablePtr> bound;
  std::vector<FeatureConfig> leaves = value.flatten();
  for (FeatureConfig& feature : leaves) {
    const auto [found, is_new] =
        bound.try_emplace(feature.table, feature.table);
    if (is_new && feature.table != nullptr) {
      TableConfig config = *feature.table;
      bind(
          config,
          c10::str(
              where.empty() ? "" : where + ", ",
              "table '",
              shorten(config.name),
              "'"));
      if (!(config == *feature.table)) {
        found->second = make_table(std::move(config));
      }
    }
    feature.table = found->second;
  }
  value = value.pack(std::move(leaves));
}

void CallableBinder::finish(const std::string& where) const {
  TESSERA_CHECK_VALUE(
      missing_.empty(),
      "{} the saved configuration needs functions that a file can't hold:{}\nPass them in Callables under these names.",
      where,
      missing_);
}

}  // namespace tessera::detail
