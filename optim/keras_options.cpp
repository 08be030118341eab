// SPDX-License-Identifier: Apache-2.0
// The options that all classes of Keras share. The defaults here and in
// optim/optimizers/ are those of the constructors in keras.optimizers (3.x),
// tf_keras.optimizers and tf_keras.optimizers.legacy, which agree. Fidelity::kTpu
// follows translate_keras_optimizer of TensorFlow Recommenders.
#include "optim/keras_options.h"

namespace tessera::optim {

namespace {

constexpr const char* kUseClipvalue =
    "Use clipvalue instead: an update sees one row at a time, but a norm needs all gradients.";

// The options of Keras 3 and tf_keras, in the order of Keras 3.
std::vector<KerasOption> current_options() {
  return {
      {"weight_decay", nullptr, Mapping::kNotOnTpu},
      {"clipnorm", nullptr, Mapping::kNoCounterpart, kUseClipvalue},
      {"global_clipnorm", nullptr, Mapping::kNoCounterpart, kUseClipvalue},
      {"clipvalue", nullptr, Mapping::kNotOnTpu},
      {"use_ema",
       false,
       Mapping::kNoCounterpart,
       "Average copies of embedding_tables() yourself."},
      {"ema_momentum", 0.99, Mapping::kWithoutEffect},
      {"ema_overwrite_frequency", nullptr, Mapping::kWithoutEffect},
      {"loss_scale_factor",
       nullptr,
       Mapping::kNoCounterpart,
       "Remove it: tables and gradients are float32 and need no scale."},
      {"gradient_accumulation_steps", nullptr, Mapping::kNotOnTpu}};
}

// Only tf_keras writes these.
std::vector<KerasOption> tf_keras_options() {
  return {
      {"jit_compile", false, Mapping::kWithoutEffect},
      {"is_legacy_optimizer", false, Mapping::kWithoutEffect}};
}

std::vector<KerasOption> legacy_options() {
  return {
      {"decay", 0.0, Mapping::kNotOnTpu},
      {"clipnorm", nullptr, Mapping::kNoCounterpart, kUseClipvalue},
      {"global_clipnorm", nullptr, Mapping::kNoCounterpart, kUseClipvalue},
      {"clipvalue", nullptr, Mapping::kNotOnTpu},
      {"is_legacy_optimizer", true, Mapping::kWithoutEffect}};
}

}  // namespace

std::vector<KerasOption> options_of(
    const KerasClass& keras_class,
    KerasSource source) {
  std::vector<KerasOption> options{
      {"name", nullptr, Mapping::kWithoutEffect}, keras_class.options.front()};
  const auto append = [&](const std::vector<KerasOption>& more, size_t from) {
    options.insert(
        options.end(), more.begin() + static_cast<int64_t>(from), more.end());
  };
  append(
      source == KerasSource::kLegacy ? legacy_options() : current_options(), 0);
  append(keras_class.options, 1);
  if (source == KerasSource::kCurrent) {
    append(tf_keras_options(), 0);
  }
  for (KerasOption& option : options) {
    for (const KerasOption& other : keras_class.other_defaults) {
      if (option.key == std::string(other.key)) {
        option = other;
      }
    }
  }
  return options;
}

}  // namespace tessera::optim
