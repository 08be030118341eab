// SPDX-License-Identifier: Apache-2.0
// Sources of the defaults: the constructors of keras.optimizers (3.x), of
// tf_keras.optimizers and of tf_keras.optimizers.legacy, which agree. What
// Fidelity::kTpu maps: translate_keras_optimizer of TensorFlow Recommenders.
#include "optim/keras_options.h"

namespace tessera::optim {

namespace {

constexpr const char* kUseClipvalue =
    "Use clipvalue: a table sees one row at a time, not the norm of all.";

// Of Keras 3 and tf_keras, in Keras 3's order.
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

// Nadam has the same options.
std::vector<KerasOption> adamax_options() {
  return {
      {"learning_rate", 0.001},
      {"beta_1", 0.9},
      {"beta_2", 0.999},
      {"epsilon", 1e-7}};
}

std::vector<KerasOption> adam_options() {
  std::vector<KerasOption> options = adamax_options();
  options.push_back({"amsgrad", false, Mapping::kNotOnTpu});
  return options;
}

}  // namespace

const std::vector<KerasClass>& keras_classes() {
  static const std::vector<KerasClass> classes{
      {.name = "SGD",
       .is_on_tpu = true,
       .is_in_legacy = true,
       .options =
           {{"learning_rate", 0.01},
            {"momentum", 0.0, Mapping::kNotOnTpu},
            {"nesterov", false, Mapping::kNotOnTpu}}},
      {.name = "Adagrad",
       .is_on_tpu = true,
       .is_in_legacy = true,
       .options =
           {{"learning_rate", 0.001},
            {"initial_accumulator_value", 0.1},
            {"epsilon", 1e-7, Mapping::kNotOnTpu}}},
      {.name = "Adam",
       .is_on_tpu = true,
       .is_in_legacy = true,
       .options = adam_options()},
      {.name = "Ftrl",
       .is_on_tpu = true,
       .is_in_legacy = true,
       .options =
           {{"learning_rate", 0.001},
            {"learning_rate_power", -0.5},
            {"initial_accumulator_value", 0.1},
            {"l1_regularization_strength", 0.0},
            {"l2_regularization_strength", 0.0},
            {"l2_shrinkage_regularization_strength", 0.0, Mapping::kNotOnTpu},
            {"beta", 0.0}}},
      {.name = "AdamW",
       .options = adam_options(),
       .other_defaults = {{"weight_decay", 0.004, Mapping::kNotOnTpu}}},
      {.name = "RMSprop",
       .is_in_legacy = true,
       .options =
           {{"learning_rate", 0.001},
            {"rho", 0.9},
            {"momentum", 0.0},
            {"epsilon", 1e-7},
            {"centered", false}}},
      {.name = "Adadelta",
       .is_in_legacy = true,
       .options = {{"learning_rate", 0.001}, {"rho", 0.95}, {"epsilon", 1e-7}}},
      {.name = "Lion",
       .options =
           {{"learning_rate", 0.001}, {"beta_1", 0.9}, {"beta_2", 0.99}}},
      {.name = "Adamax", .is_in_legacy = true, .options = adamax_options()},
      {.name = "Nadam",
       .is_in_legacy = true,
       .options = adamax_options(),
       .other_defaults = {{"decay", 0.004}}}};
  return classes;
}

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

const std::vector<KerasSchedule>& keras_schedules() {
  static const std::vector<KerasSchedule> schedules{
      {"ExponentialDecay",
       {"initial_learning_rate", "decay_steps", "decay_rate"}},
      {"PiecewiseConstantDecay", {"boundaries", "values"}},
      {"PolynomialDecay", {"initial_learning_rate", "decay_steps"}},
      {"InverseTimeDecay",
       {"initial_learning_rate", "decay_steps", "decay_rate"}},
      {"CosineDecay", {"initial_learning_rate", "decay_steps"}},
      {"CosineDecayRestarts", {"initial_learning_rate", "first_decay_steps"}}};
  return schedules;
}

}  // namespace tessera::optim
