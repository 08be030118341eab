// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>
#include <tessera/optim/keras.h>
#include <tessera/optim/learning_rate.h>

#include "optim/keras_options.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::optim {

/// Whether Keras changes a row and its slots in an update that has no gradient for the
/// row. With kOnlySlotsUpdated, the slots change as if the gradient were zero, but the row
/// does not. Weight decay changes the row in any case.
enum class IdleRows { kUnchanged, kUpdated, kOnlySlotsUpdated };

/// What the option `decay` of legacy Keras applies to.
enum class LegacyDecay { kOfLearningRate, kOfMomentum };

/// The options of one Keras optimizer. The constructor refuses options that the class
/// does not have or that the fidelity does not support.
class KerasConfig {
 public:
  KerasConfig(
      const KerasClass& keras_class,
      KerasSource source,
      Fidelity fidelity,
      Json config);

  double number(const char* key) const {
    return JsonValue<double>::read(value(key), where_of(key));
  }
  bool flag(const char* key) const {
    return JsonValue<bool>::read(value(key), where_of(key));
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

  /// Returns `spec` with the options that all classes share.
  template <class Spec>
  Spec finish(
      Spec spec,
      IdleRows idle_rows,
      LegacyDecay legacy_decay = LegacyDecay::kOfLearningRate) const {
    const Shared shared = read_shared(idle_rows, legacy_decay);
    spec.learning_rate = shared.learning_rate;
    if (shared.clip) {
      spec.clip_gradient_min = -*shared.clip;
      spec.clip_gradient_max = *shared.clip;
    }
    if (shared.weight_decay != 0.0) {
      spec.weight_decay_factor = shared.weight_decay;
      spec.multiply_weight_decay_factor_by_learning_rate = true;
    }
    spec.gradient_accumulation_steps = shared.gradient_accumulation_steps;
    if constexpr (requires { spec.lazy_adam; }) {
      spec.lazy_adam = shared.is_lazy;
    } else {
      spec.lazy = shared.is_lazy;
    }
    return spec;
  }

 private:
  // The values of the options that all classes share.
  struct Shared {
    LearningRate learning_rate = 0.0;
    std::optional<double> clip = {};
    double weight_decay = 0.0;
    int64_t gradient_accumulation_steps = 1;
    bool is_lazy = true;
  };

  Shared read_shared(IdleRows idle_rows, LegacyDecay legacy_decay) const;
  LearningRate read_learning_rate(LegacyDecay legacy_decay) const;

  void check_supported(const KerasOption& option, const Json& value) const;
  // The option's value or Keras's default; null if this source has no such option.
  Json value(const char* key) const;
  std::optional<double> optional_number(const char* key) const;
  std::string where_of(const char* key) const;

  std::vector<KerasOption> options_;
  std::string where_;
  Json config_;
  KerasSource source_;
  Fidelity fidelity_;
};

}  // namespace tessera::optim
