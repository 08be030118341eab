// SPDX-License-Identifier: Apache-2.0
#pragma once

// The classes of Keras, their options and schedules. Both directions of the translation
// read them.

#include <tessera/common/json_value.h>
#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizer.h>

#include <string>
#include <vector>

namespace tessera::optim {

/// Which Keras wrote a config. The arithmetic of the two differs.
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

/// All options of a class, in the order in which Keras 3 writes them.
std::vector<KerasOption> options_of(
    const KerasClass& keras_class,
    KerasSource source);

/// The text with its ASCII letters in lower case.
std::string lower_case(std::string text);

/// Returns the class name of an object that Keras serialized, and checks its other keys.
/// Errors:  c10::ValueError for wrong keys and for classes outside Keras; `where` is the
///          path of the object.
std::string read_keras_class_name(const Json& json, const std::string& where);

/// Reads a number or a schedule that Keras serialized.
LearningRate read_keras_learning_rate(
    const Json& json,
    const std::string& where);

/// Writes a schedule as Keras serializes it. `schedule` is not a Warmup, which Keras does
/// not have.
Json write_keras_schedule(const Schedule& schedule);

}  // namespace tessera::optim
