// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <tessera/engine/embedding_engine.h>
#include <tessera/features/feature.h>
#include <tessera/layers/tpu_embedding.h>
#include <torch/nn/module.h>

#include <array>
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
/// How export_torchscript() writes a file.
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

/// Writes an embedding as TorchScript of stock operators: the tables without their slots,
/// and the lookups. torch::jit::load and torch.jit.load read the file without Tessera.
///
///   export_torchscript(model->embedding, "embedding.pt", {.dtype = at::kChar});
///
/// In Python:
///
///   embedding = torch.jit.load("embedding.pt")
///   activations = embedding(
///       {"user": [ids],                               # dense
///        "history": [values, row_splits],             # ragged
///        "tags": [indices, values, dense_shape]},     # sparse
///       {"history": flat_weights})                    # optional
///
/// Keys are the features' paths in the nest, such as "user/history". A caller may pass
/// some of the features and gets their activations. Each feature may be of any kind that
/// its config allows, and batches may have any size. The file does not keep the batch
/// size of build(). It keeps FeatureConfig::output_shape, with the number of ragged rows
/// that the layer has fixed so far. The file refuses the inputs that forward() refuses.
/// Its tables are named `table_0`, `table_1`, ..., as in a checkpoint.
///
/// Before this function returns, it loads the file and compares it with the layer on
/// made-up batches. The file appears at `path` only if they agree.
/// Errors:  c10::ValueError for an unknown feature, another dtype, a path that is not a
///          file's, and rows that the dtype can't hold; c10::Error if the file can't be
///          written or the results differ. No file is left.
void export_torchscript(
    const TPUEmbedding& embedding,
    const std::string& path,
    const ExportOptions& options = {});

/// Exports an engine, such as an EmbeddingEngineModule. Other calls of the engine wait
/// until the export is done.
void export_torchscript(
    const EmbeddingEngine& engine,
    const std::string& path,
    const ExportOptions& options = {});

namespace detail {

/// A model whose forward() takes features, perhaps weights, and then tensors.
struct ExportedModel {
  torch::nn::Module& module;
  std::function<std::vector<at::Tensor>(const ExportExample&)> forward;
  bool takes_weights = false;
  bool returns_list = false;
  size_t inputs = 0;
};

void export_torchscript(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options);

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
    // torch::nn::Sequential has a forward() that is a template of its result.
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

/// Writes a whole model as one TorchScript file, with tables and dense weights.
///
///   export_torchscript(
///       ranker, "ranker.pt", {.features = batch, .inputs = {prices}});
///
/// In Python, call `torch.jit.load("ranker.pt")(features, prices)`. `features` is a dict
/// as for an embedding alone, but it must hold all features, each of the kind that it has
/// in the example. If forward() takes Weights, the dict of weights comes second.
/// Parameters keep their names.
///
/// The model's forward() takes Features, perhaps Weights, then any number of
/// tensors, and returns a tensor or a vector of them. It calls one or more registered
/// TPUEmbedding layers. With a registered EmbeddingEngineModule, it looks up all features
/// with embedding_lookup(), or with enqueue() and dequeue(). A forward() that calls
/// apply_gradients() is refused, because the file does not train.
///
/// LibTorch's tracer runs forward() on the example, in eval mode. Everything but the
/// operators on tensors becomes a constant of the file, such as the kinds of features and
/// sizes that C++ reads. Write flatten(1) or view({-1, 8}), not view({x.size(0), 8}).
///
/// The file is compared with the model on the example and on batches made of its rows,
/// with 0, 1 and 2 * batch + 1 examples. An entry of `inputs` is resized with the batch
/// if its first size is the batch size or the number of a feature's ids. The model itself
/// does not change.
/// Errors:  those of an embedding alone; c10::ValueError for an example that is empty or
///          does not fit the model, for a model that calls no TPUEmbedding or passes it
///          tensors that operators do not compute from the inputs, and if the results
///          differ, for example because the batch size became a constant.
template <class Holder>
requires(!std::is_same_v<Holder, TPUEmbedding> && !std::is_convertible_v<Holder*, EmbeddingEngine*>) void export_torchscript(
    Holder model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options = {}) {
  TORCH_CHECK_VALUE(
      static_cast<bool>(model),
      "[export_torchscript] expected a model, but got an empty holder. Make the "
      "model before the export.");
  detail::export_torchscript(
      detail::exported_model(*model), path, example, options);
}

}  // namespace tessera
