// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>
#include <tessera/engine/strategy.h>
#include <tessera/layers/layer.h>
#include <tessera/optim/optimizer_json.h>
#include <tessera/serialization/callables.h>
#include <tessera/serialization/config_values.h>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace tessera {

/// A program that defines a layer must include this header in at least one of its
/// sources.
template <class Derived, class OptionsType>
Json LayerImpl<Derived, OptionsType>::get_config() const {
  return JsonValue<OptionsType>::write(options_);
}

// snippet: tests/docs/reference_layers_test.cpp FromJson
/// The parts of a layer that JSON can't hold.
///
///   const auto embedding = from_json<TPUEmbedding>(
///       json,
///       {.callables = {.learning_rates = {{"warm_up", warm_up}}},
///        .strategy = Strategy::host()});
struct FromJson {
  /// The functions that layers use, by their names in the JSON.
  Callables callables = {};
  /// Replaces the strategy of every layer whose options have a field of type Strategy. A
  /// strategy deeper in the options is not replaced, such as that of a
  /// TPUEmbeddingOptions in the options of a model.
  std::optional<Strategy> strategy = {};
};

/// Writes a layer or a model as JSON, from which an equal one can be built. The values of
/// parameters are not included.
///
///   {"class_name": "Cross", "config": {"projection_dim": 16, ...},
///    "build_config": {"input_shape": [null, 64]}}
///
/// It supports the layers of Tessera, registered classes, torch::nn::Sequential of these,
/// and these layers of LibTorch: BatchNorm1d, Dropout, ELU, Flatten, GELU, Identity,
/// LayerNorm, LeakyReLU, Linear, ReLU, SiLU, Sigmoid, Softmax, Tanh. If a layer was
/// converted to another dtype than float32, its JSON has the dtype. If a layer occurs
/// twice in a Sequential, it is one layer again after reading. If features of one
/// `Nest<FeatureConfig>` share a table, they share it again after reading. Features of
/// different nests get a table per nest.
/// Errors:  c10::ValueError naming an unknown class.
/// Source:  Keras's serialize_keras_object.
Json to_json(const torch::nn::Module& layer);

template <class Impl>
Json to_json(const torch::nn::ModuleHolder<Impl>& layer) {
  return to_json(*layer);
}

/// Builds the layer that to_json() wrote, of the class that the JSON names.
/// Errors:  c10::ValueError naming an unknown class or key, a value out of range, or all
///          functions that are missing in `bindings`.
std::shared_ptr<torch::nn::Module> layer_from_json(
    const Json& json,
    const FromJson& bindings = {});

namespace detail {

struct LayerInstance {
  std::shared_ptr<torch::nn::Module> module = {};
  /// The same module, as a Sequential holds it. Empty if the class has no plain
  /// forward().
  torch::nn::AnyModule any = {};
};

struct LayerClass {
  std::string name;
  std::type_index type;
  std::function<Json(const torch::nn::Module&)> get_config;
  std::function<LayerInstance(
      const Json& config,
      const std::string& where,
      const FromJson& bindings)>
      make;
};

/// Adds a class to those that JSON knows.
/// Errors:  c10::ValueError if another class has the same name.
void add_layer_class(LayerClass layer_class);

template <class Impl>
LayerInstance make_layer(typename Impl::Options options) {
  auto module = std::make_shared<Impl>(std::move(options));
  LayerInstance instance{.module = module};
  if constexpr (torch::detail::has_forward<Impl>::value) {
    instance.any = torch::nn::AnyModule(module);
  }
  return instance;
}

/// Reads options from JSON. `bindings` provides the functions, which JSON can't hold. Its
/// strategy, if set, replaces the one of the JSON.
template <class Options>
Options options_from_json(
    const Json& config,
    const std::string& where,
    const FromJson& bindings) {
  auto options = JsonValue<Options>::read(config, where);
  CallableBinder binder(bindings.callables);
  binder.bind(options, where);
  binder.finish(c10::str("[", where, "]"));
  if constexpr (HasFields<Options>) {
    Options::visit_fields(options, [&](const char*, auto& field) {
      if constexpr (std::is_same_v<decltype(field), Strategy&>) {
        field = bindings.strategy.value_or(field);
      }
    });
  }
  return options;
}

template <class Holder>
LayerClass layer_class() {
  using Impl = typename Holder::ContainedType;
  static_assert(
      std::is_base_of_v<Layer, Impl>, "derive the layer from LayerImpl");
  return {
      .name = Impl::kClassName,
      .type = typeid(Impl),
      .get_config =
          [](const torch::nn::Module& layer) {
            return dynamic_cast<const Layer&>(layer).get_config();
          },
      .make =
          [](const Json& config,
             const std::string& where,
             const FromJson& bindings) {
            return make_layer<Impl>(options_from_json<typename Impl::Options>(
                config, where, bindings));
          }};
}

}  // namespace detail

/// Builds a layer of this class from its get_config().
/// Errors:  as for layer_from_json().
template <class Holder>
Holder from_config(const Json& config, const FromJson& bindings = {}) {
  using Impl = typename Holder::ContainedType;
  check_depth(config, Impl::kClassName);
  return Holder(
      std::make_shared<Impl>(detail::options_from_json<typename Impl::Options>(
          config, Impl::kClassName, bindings)));
}

/// Builds the layer that to_json() wrote. It must be of the class that `Holder` holds.
///
///   auto model = from_json<torch::nn::Sequential>(parse_json(text));
///
/// Errors:  as for layer_from_json(); c10::ValueError for a layer of another class.
template <class Holder>
Holder from_json(const Json& json, const FromJson& bindings = {}) {
  using Impl = typename Holder::ContainedType;
  auto layer = std::dynamic_pointer_cast<Impl>(layer_from_json(json, bindings));
  TORCH_CHECK_VALUE(
      layer != nullptr,
      "[from_json] expected the JSON of a ",
      c10::demangle(typeid(Impl).name()),
      ", but its class_name is '",
      shorten(json.at("class_name").template get<std::string>()),
      "'. Read it with layer_from_json().");
  return Holder(std::move(layer));
}

/// Registers your own class for to_json() and layer_from_json(). Like a LayerImpl, it must
/// be a Layer and have kClassName, Options, and a constructor that takes Options.
///
///   const bool is_registered = tessera::register_layer<Ranker>();
///
/// Errors:  c10::ValueError if another class has the same name.
template <class Holder>
bool register_layer() {
  detail::add_layer_class(detail::layer_class<Holder>());
  return true;
}

}  // namespace tessera
