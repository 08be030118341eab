// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>
#include <tessera/optim/keras.h>
#include <tessera/optim/learning_rate.h>

#include "optim/common_options.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::optim {

// The classes of Keras and their options. Both directions of the translation read them.

/// The Keras that wrote a config. The arithmetic of the two differs.
enum class KerasSource {
  kCurrent,  // Keras 3 and the new optimizers of tf_keras
  kLegacy,  // keras.optimizers.legacy
};

/// How an option is translated.
enum class Mapping {
  kMapped,  // becomes a part of the spec
  kNotOnTpu,  // as kMapped, but must have the default value with Fidelity::kTpu
  kNoCounterpart,  // must have the default value
  kWithoutEffect,  // is ignored, because no result depends on it
};

struct KerasOption {
  const char* key = "";
  /// The value that Keras uses if the key is missing; null means unset.
  Json keras_default = {};
  Mapping mapping = Mapping::kMapped;
  /// For kNoCounterpart: what the user can do instead.
  const char* instead = "";
};

class KerasConfig;

struct KerasClass {
  const char* name = "";
  bool is_on_tpu = false;
  bool is_in_legacy = false;
  /// The options of this class alone. The learning rate is the first.
  std::vector<KerasOption> options = {};
  /// The shared options that have another default in this class.
  std::vector<KerasOption> other_defaults = {};
  OptimizerSpec (*translate)(const KerasConfig& config) = nullptr;
};

/// The Keras classes of all specs. Those with is_on_tpu come first.
const std::vector<KerasClass>& keras_classes();

/// The text with its ASCII letters in lower case.
std::string lower_case(std::string text);

/// Returns the class name of an object that Keras serialized, and checks its other keys.
/// Errors:  c10::ValueError for wrong keys and for classes outside Keras; `where` is the
///          path of the object.
std::string read_keras_class_name(const Json& json, const std::string& where);

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

  /// Returns `spec` with the options that all classes share, and with those of this class
  /// that the spec calls by the same name.
  OptimizerSpec finish(
      OptimizerSpec spec,
      IdleRows idle_rows,
      LegacyDecay legacy_decay = LegacyDecay::kOfLearningRate) const;

 private:
  // True if the config has the option and the spec takes it over.
  bool is_read(const char* key) const;
  void read(const char* key, double& field) const {
    field = is_read(key) ? number(key) : field;
  }
  void read(const char* key, bool& field) const {
    field = is_read(key) ? flag(key) : field;
  }
  void read(const char* /*key*/, const auto& /*field*/) const {}

  LearningRate read_learning_rate(LegacyDecay legacy_decay) const;

  void check_supported(const KerasOption& option, const Json& value) const;
  // The option of this source, or nullptr.
  const KerasOption* find(std::string_view key) const;
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

/// Translates a class whose options have the same names in the spec. The legacy class
/// changes only the rows of the batch.
template <class Spec>
OptimizerSpec translate_plain(const KerasConfig& config) {
  return config.finish(
      Spec{}, config.is_legacy() ? IdleRows::kUnchanged : IdleRows::kUpdated);
}

/// Writes the config of one Keras class. It refuses what the class does not support.
class KerasWriter {
 public:
  /// `name` is the name of the spec, for messages.
  explicit KerasWriter(const std::string& name);

  /// Errors:  c10::ValueError unless `is_expressible`. It says that `what` has no
  ///          counterpart in Keras 3.
  void require(bool is_expressible, const char* what) const;

  /// Returns {"module": ..., "class_name": ..., "config": ...}. The config has the options
  /// that all specs share, the fields of the spec that the class calls by the same name,
  /// and Keras's defaults.
  Json write(const char* class_name, const OptimizerSpec& spec) const;

 private:
  Json learning_rate(const LearningRate& rate) const;

  std::string where_;
};

}  // namespace tessera::optim
