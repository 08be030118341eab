// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <tessera/common/precision.h>
#include <tessera/engine/table_module.h>
#include <tessera/features/feature.h>
#include <torch/nn/module.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

// snippet: tests/docs/reference_layers_test.cpp ExportOptions
/// How export_torchscript() and export_pt2() write a file.
///
///   export_torchscript(
///       embedding, "users.pt", {.features = {"user"}, .dtype = at::kChar});
struct ExportOptions {
  /// The paths of the features to export. Empty: all. Must be empty for a whole model.
  std::vector<std::string> features = {};
  /// The dtype of all tables in the file: kFloat, kBFloat16, kHalf or kChar. kChar
  /// stores int8 with a scale and an offset per row. Unset: the dtype of each table in
  /// the layer. Sums are float32 in any case.
  std::optional<at::ScalarType> dtype = {};
  /// The precision in which the file computes what follows the lookups. With kBFloat16, the
  /// file has float32 weights and converts them in each call. A layer alone has no such part.
  Precision precision = Precision::kFloat32;

  bool operator==(const ExportOptions&) const = default;
};
static_assert(std::is_aggregate_v<ExportOptions>);

// snippet: tests/docs/reference_layers_test.cpp ExportExample
/// The arguments of a model's forward(), for a batch of one or more examples.
///
///   PricedRanker ranker(options);  // forward(features, prices)
///   export_torchscript(
///       ranker, "ranker.pt", {.features = features, .inputs = {prices}});
struct ExportExample {
  Features features = {};
  /// Only for a model with forward(features, weights, ...).
  Weights weights = {};
  /// The tensors after features and weights, in order.
  std::vector<at::Tensor> inputs = {};
};
static_assert(std::is_aggregate_v<ExportExample>);

namespace detail {

/// An EmbeddingEngine, or a holder such as TPUEmbedding.
template <class T>
concept HasTables = std::derived_from<T, TableModule> || requires {
  requires std::derived_from<typename T::ContainedType, TableModule>;
};

/// The tables of `layer`, or nullptr for an empty holder.
template <HasTables T>
const TableModule* tables_of(const T& layer) {
  if constexpr (std::derived_from<T, TableModule>) {
    return &layer;
  } else {
    return layer.is_empty() ? nullptr : layer.get();
  }
}

/// A model whose forward() takes features, perhaps weights, and then tensors.
struct ExportedModel {
  torch::nn::Module& module;
  std::function<std::vector<at::Tensor>(const ExportExample&)> forward;
  bool takes_weights = false;
  bool returns_list = false;
  size_t inputs = 0;
};

template <class Argument, class... Kinds>
inline constexpr bool is_one_of =
    (std::is_same_v<std::remove_cvref_t<Argument>, Kinds> || ...);

/// Describes the parameters of a member function forward() that follow the features.
template <class Result, class... Rest>
struct ForwardParameters {
  static_assert(
      is_one_of<Result, at::Tensor, std::vector<at::Tensor>>,
      "forward() must return a tensor or a vector of tensors");

  static constexpr bool takes_weights = [] {
    if constexpr (sizeof...(Rest) == 0) {
      return false;
    } else {
      return is_one_of<std::tuple_element_t<0, std::tuple<Rest...>>, Weights>;
    }
  }();
  static constexpr size_t inputs = sizeof...(Rest) - (takes_weights ? 1 : 0);
  static constexpr bool returns_list = !is_one_of<Result, at::Tensor>;
  static_assert(
      (size_t{0} + ... + (is_one_of<Rest, at::Tensor> ? 1 : 0)) == inputs,
      "after features and weights, forward() must take tensors only");
};

template <class Result, class Owner, class First, class... Rest>
ForwardParameters<Result, Rest...> forward_parameters(
    Result (Owner::*)(First, Rest...)) {
  static_assert(
      is_one_of<First, Features>,
      "forward() must take tessera::Features first");
  return {};
}
template <class Result, class Owner, class First, class... Rest>
ForwardParameters<Result, Rest...> forward_parameters(
    Result (Owner::*)(First, Rest...) const) {
  static_assert(
      is_one_of<First, Features>,
      "forward() must take tessera::Features first");
  return {};
}

template <class Impl>
ExportedModel exported_model(Impl& model) {
  if constexpr (requires { &Impl::forward; }) {
    using Parameters = decltype(forward_parameters(&Impl::forward));
    const auto forward = [&model](const ExportExample& batch) {
      const auto call = [&]<size_t... i>(std::index_sequence<i...>) {
        if constexpr (Parameters::takes_weights) {
          return model.forward(
              batch.features, batch.weights, batch.inputs[i]...);
        } else {
          return model.forward(batch.features, batch.inputs[i]...);
        }
      };
      auto result = call(std::make_index_sequence<Parameters::inputs>());
      if constexpr (Parameters::returns_list) {
        return result;
      } else {
        return std::vector<at::Tensor>{result};
      }
    };
    return {
        model,
        forward,
        Parameters::takes_weights,
        Parameters::returns_list,
        Parameters::inputs};
  } else {
    // The forward() of torch::nn::Sequential is a template with the type of its result.
    static_assert(
        requires(const Features& features) {
          model.template forward<at::Tensor>(features);
        },
        "a model must have one forward(), not several of that name");
    return {model, [&model](const ExportExample& batch) {
              return std::vector<at::Tensor>{
                  model.template forward<at::Tensor>(batch.features)};
            }};
  }
}

}  // namespace detail

}  // namespace tessera
