// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <concepts>
#include <memory>
#include <string>
#include <typeinfo>

namespace tessera::optim {

template <class Spec>
struct OptimizerDefinition;

/// All that the library needs to know about a spec, such as its slots and its formula.
/// Each spec has a friend definition_of(), which its source in optim/optimizers/ defines.
/// The definition that it returns refers to the spec.
template <class Spec>
using DefinitionOf = std::unique_ptr<const OptimizerDefinition<Spec>>;

namespace detail {

struct OptimizerVariant;  // any of the specs; optim/optimizers.h completes it

/// A type with a DefinitionOf of its own: SGD, Adam and the others in
/// optim/optimizers/, but no class that is derived from one of them.
template <class T>
concept Spec = requires(const T& spec) {
  { definition_of(spec) } -> std::same_as<DefinitionOf<T>>;
};

/// A spec, or the variant of all specs.
template <class T>
concept SpecOrVariant = std::same_as<T, OptimizerVariant> || Spec<T>;

}  // namespace detail

// snippet: tests/docs/reference_optim_test.cpp OptimizerSpec
/// How a table is trained: made from a native spec, a name, or what Keras serializes.
///
///   const OptimizerSpec spec = Adagrad{.learning_rate = 0.05};
///   const OptimizerSpec named = "adagrad";  // with defaults; see optim/keras.h
///   const OptimizerSpec keras = keras_json;  // as Fidelity::kTpu of optim/keras.h
///
///   const Adagrad* adagrad = spec.get_if<Adagrad>();  // nullptr: another spec
///   const auto rate_of = [](const auto& held) { return held.learning_rate; };
///   const LearningRate rate = std::visit(rate_of, spec.variant());
///
/// The spec inside is constant. Copies share it, so copying is cheap.
/// Errors:  c10::ValueError for text and JSON that can't be translated.
class OptimizerSpec {
 public:
  /// SGD with its defaults.
  OptimizerSpec();

  // NOLINTBEGIN(google-explicit-constructor)
  /// Converts a spec, or the variant of all specs. To pass the variant, include
  /// optim/optimizers.h, which defines it.
  /// Errors:  c10::ValueError for a variant without a value.
  template <detail::SpecOrVariant Spec>
  OptimizerSpec(Spec spec) : OptimizerSpec(typeid(Spec), &spec) {}

  OptimizerSpec(const char* keras);
  OptimizerSpec(const std::string& keras);
  OptimizerSpec(const nlohmann::json& keras);
  OptimizerSpec(const nlohmann::ordered_json& keras);
  // NOLINTEND(google-explicit-constructor)

  // There are no moves, because a spec that was moved from would be empty.
  OptimizerSpec(const OptimizerSpec&) = default;
  OptimizerSpec& operator=(const OptimizerSpec&) = default;
  ~OptimizerSpec() = default;

  /// The spec inside, or nullptr if it is of another type.
  template <detail::Spec Spec>
  const Spec* get_if() const& {
    return static_cast<const Spec*>(find(typeid(Spec)));
  }
  template <detail::Spec Spec>
  const Spec* get_if() const&& = delete;  // points into this OptimizerSpec

  /// The spec inside, for std::visit(). This needs optim/optimizers.h, whose function
  /// modify() changes a spec.
  const detail::OptimizerVariant& variant() const&;
  detail::OptimizerVariant variant() &&;

  bool operator==(const OptimizerSpec& other) const;

 private:
  // Moves the spec or the variant.
  OptimizerSpec(const std::type_info& type, void* spec);

  const void* find(const std::type_info& type) const;

  std::shared_ptr<const detail::OptimizerVariant> spec_;  // never null
};

/// The spec's name in JSON and in summaries: "SGD", "Adagrad", ...
std::string name_of(const OptimizerSpec& optimizer);

/// Refuses options out of their range; `where` begins the message.
void validate(const OptimizerSpec& optimizer, const std::string& where);

/// Returns whether an update also changes rows or slots outside the batch.
bool sweeps_all_rows(const OptimizerSpec& optimizer);

}  // namespace tessera::optim
