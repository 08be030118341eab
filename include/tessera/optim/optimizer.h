// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/is_alternative.h>

#include <nlohmann/json_fwd.hpp>

#include <any>
#include <concepts>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <variant>

namespace tessera::optim {

/// All specs. This declares them; each has its header in optim/optimizers/, and
/// optim/optimizers.h includes all of these. A forgotten case does not compile.
using OptimizerVariant = std::variant<
    struct SGD,
    struct Momentum,
    struct Adagrad,
    struct AdagradMomentum,
    struct ProximalAdagrad,
    struct RowWiseAdagrad,
    struct Adam,
    struct FTRL,
    struct RMSprop,
    struct Adadelta,
    struct Lion,
    struct LAMB,
    struct Adamax,
    struct Nadam,
    struct CustomOptimizer>;

/// How a table learns: a native spec, a name, or what Keras serializes.
///
///   OptimizerSpec spec = Adagrad{.learning_rate = 0.05};
///   OptimizerSpec spec = "adagrad";   // with defaults; names: optim/keras.h
///   OptimizerSpec spec = keras_json;  // Fidelity::kTpu of optim/keras.h
///
///   if (const Adagrad* adagrad = spec.get_if<Adagrad>()) { ... }
///   std::visit([](const auto& held) { ... }, spec.variant());
///
/// A spec inside does not change, so copies share it and cost nothing.
/// Errors:  c10::ValueError for text and JSON that can't be translated.
class OptimizerSpec {
 public:
  /// SGD with its defaults.
  OptimizerSpec();

  // NOLINTBEGIN(google-explicit-constructor)
  template <class Spec>
  requires detail::kIsAlternative<Spec, OptimizerVariant> OptimizerSpec(
      Spec spec)
      : spec_(hold(std::move(spec))) {}

  /// Needs optim/optimizers.h, which completes the variant. A template does not look
  /// at the variant before it is used.
  template <std::same_as<OptimizerVariant> Variant>
  OptimizerSpec(Variant spec)
      : spec_(std::make_shared<const Variant>(std::move(spec))) {}

  OptimizerSpec(const char* keras);
  OptimizerSpec(const std::string& keras);
  OptimizerSpec(const nlohmann::json& keras);
  OptimizerSpec(const nlohmann::ordered_json& keras);
  // NOLINTEND(google-explicit-constructor)

  // There is no move, after which a spec would be empty.
  OptimizerSpec(const OptimizerSpec&) = default;
  OptimizerSpec& operator=(const OptimizerSpec&) = default;
  ~OptimizerSpec() = default;

  /// The spec inside, or nullptr if it is another one.
  template <class Spec>
  requires detail::kIsAlternative<Spec, OptimizerVariant>
  const Spec* get_if() const {
    return static_cast<const Spec*>(find(typeid(Spec)));
  }

  /// For std::visit(), which needs optim/optimizers.h. modify() there changes a spec.
  const OptimizerVariant& variant() const;

  bool operator==(const OptimizerSpec& other) const;

 private:
  static std::shared_ptr<const OptimizerVariant> hold(std::any spec);
  const void* find(const std::type_info& type) const;

  std::shared_ptr<const OptimizerVariant> spec_;  // never null
};

/// "SGD", "Adagrad", ...: the name in JSON and in summaries.
std::string name_of(const OptimizerSpec& optimizer);

/// Refuses options out of their range; `where` begins the message.
void validate(const OptimizerSpec& optimizer, const std::string& where);

/// Whether an update moves rows or slots beyond those of the batch.
bool sweeps_all_rows(const OptimizerSpec& optimizer);

}  // namespace tessera::optim
