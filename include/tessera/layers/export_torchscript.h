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

/// What export_torchscript() writes.
struct ExportOptions {
  /// Paths of the features to export, of an embedding alone. Empty: all.
  std::vector<std::string> features = {};
  /// What all tables are stored as: kFloat, kBFloat16, kHalf, or kChar, int8
  /// with a scale and an offset per row. Unset: as the layer stores them. Sums
  /// are float32 all the same.
  std::optional<at::ScalarType> dtype = {};

  bool operator==(const ExportOptions&) const = default;
};
static_assert(std::is_aggregate_v<ExportOptions>);

/// What a model's forward() takes, for one batch of at least one example.
struct ExportExample {
  Features features = {};
  /// For a forward(features, weights, ...).
  Weights weights = {};
  /// The tensors after them, in order.
  std::vector<at::Tensor> inputs = {};
};
static_assert(std::is_aggregate_v<ExportExample>);

/// Writes an embedding as TorchScript of stock operators: tables without their
/// slots, and the lookups. torch::jit::load or torch.jit.load read it where
/// there is no Tessera.
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
/// Keys are the features' paths in the nest, such as "user/history". A caller
/// passes some of the features and gets their activations, each of any kind
/// that its config allows, and in batches of any size. The file does not keep the
/// batch size of build(). It keeps FeatureConfig::output_shape, with the number of
/// ragged rows that the layer has fixed so far. The file refuses what forward()
/// refuses. Its tables are `table_0`, `table_1`, ..., as in a checkpoint.
///
/// Before it returns, the file is loaded and compared with the layer on
/// made-up batches. It appears under its name only then.
/// Errors:  c10::ValueError for an unknown feature, a dtype, a path of something
///          else than a file, rows that the dtype can't hold; c10::Error when
///          it can't be written or the results differ. No file is left.
void export_torchscript(
    const TPUEmbedding& embedding,
    const std::string& path,
    const ExportOptions& options = {});

/// Exports an engine, such as an EmbeddingEngineModule. Other calls of the engine wait
/// meanwhile.
void export_torchscript(
    const EmbeddingEngine& engine,
    const std::string& path,
    const ExportOptions& options = {});

namespace detail {

/// A model whose forward() takes features, weights or not, then tensors.
struct ExportedModel {
  torch::nn::Module& module;
  std::function<std::vector<at::Tensor>(const ExportExample&)> forward;
  bool takes_weights = false;
  bool gives_list = false;
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

/// What follows the features in the parameters of a member function forward().
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
  static constexpr bool gives_list = !is_one_of<Result, at::Tensor>;
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
      if constexpr (Parameters::gives_list) {
        return result;
      } else {
        return std::vector<at::Tensor>{result};
      }
    };
    return {
        model,
        forward,
        Parameters::takes_weights,
        Parameters::gives_list,
        Parameters::inputs};
  } else {
    // torch::nn::Sequential, whose forward() is a template of its result.
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

/// Writes a whole model, tables and dense weights, as one TorchScript file.
///
///   export_torchscript(
///       ranker, "ranker.pt", {.features = batch, .inputs = {prices}});
///
/// In Python, `torch.jit.load("ranker.pt")(features, prices)` with a dict as for
/// an embedding alone, of all the features and of the kinds that the example
/// has; the dict of weights follows it where forward() takes Weights. Parameters
/// keep their names.
///
/// The model's forward() takes Features, perhaps Weights, then any number of
/// tensors, and returns a tensor or a vector of them. It calls one or more registered
/// TPUEmbedding layers. With a registered EmbeddingEngineModule, it looks up all
/// features by embedding_lookup(), or by enqueue() and dequeue(). A forward() that
/// calls apply_gradients() is refused, because the file does not train. LibTorch's
/// tracer runs forward() on the example, in eval mode: whatever is not an operator on
/// tensors stays as the example had it, kinds of features and C++ sizes too. Write
/// flatten(1) or view({-1, 8}), not view({x.size(0), 8}).
///
/// The file is compared with the model on the example and on batches of its
/// rows: none, one, and twice as many and one more. An entry of `inputs` whose
/// first size is the batch's, or the number of a feature's ids, goes with them.
/// The model is left as it was.
/// Errors:  as above; c10::ValueError for an example that does not fit the
///          model or is empty, for a model that reaches no TPUEmbedding, gives
///          it what does not come from the inputs by operators, or whose
///          results differ, as those of a frozen batch size.
template <class Holder>
requires(!std::is_same_v<Holder, TPUEmbedding> && !std::is_convertible_v<Holder*, EmbeddingEngine*>) void export_torchscript(
    Holder model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options = {}) {
  TORCH_CHECK_VALUE(
      static_cast<bool>(model),
      "[export_torchscript] expected a model, but got an empty one.");
  detail::export_torchscript(
      detail::exported_model(*model), path, example, options);
}

}  // namespace tessera
