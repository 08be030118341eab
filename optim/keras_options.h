// SPDX-License-Identifier: Apache-2.0
#pragma once

// The classes of Keras, their options and where those go: what translation in both
// directions reads.

#include <tessera/common/json_value.h>
#include <tessera/optim/optimizer.h>

#include <string>
#include <vector>

namespace tessera::optim {

/// Who wrote a config: the arithmetic differs.
enum class KerasSource {
  kCurrent,  // Keras 3 and the new optimizers of tf_keras
  kLegacy,  // keras.optimizers.legacy
};

/// Where the value of an option goes.
enum class Mapping {
  kMapped,  // to the spec
  kNotOnTpu,  // to the spec; with Fidelity::kTpu it must be the default
  kNoCounterpart,  // nowhere: it must be the default
  kWithoutEffect,  // nowhere, and no result depends on it
};

struct KerasOption {
  const char* key = "";
  /// What Keras takes when the key is missing; null is unset.
  Json keras_default = {};
  Mapping mapping = Mapping::kMapped;
  /// For an option without counterpart: what to do.
  const char* instead = "";
};

class KerasConfig;

struct KerasClass {
  const char* name = "";
  bool is_on_tpu = false;
  bool is_in_legacy = false;
  /// Without those that all classes share.
  std::vector<KerasOption> options = {};
  /// Shared options for which this class has another default.
  std::vector<KerasOption> other_defaults = {};
  OptimizerSpec (*translate)(const KerasConfig& config) = nullptr;
};

/// Those of all specs. The classes that an accelerator has come first.
const std::vector<KerasClass>& keras_classes();

/// All options of a class, in the order in which Keras 3 writes them.
std::vector<KerasOption> options_of(
    const KerasClass& keras_class,
    KerasSource source);

}  // namespace tessera::optim
