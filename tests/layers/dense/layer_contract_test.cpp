// SPDX-License-Identifier: Apache-2.0
#include "tests/layers/layer_contract.h"

#include <tessera/layers/dense/concatenate.h>
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/embed_reduce.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>

namespace tessera::test::layer_contract_test {

const initializers::Normal kWide{.stddev = 1.0};

std::vector<LayerCase> crosses() {
  std::vector<LayerCase> cases;
  for (const std::optional<int64_t> projection_dim :
       {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    for (const double diag_scale : {0.0, 0.5}) {
      for (const bool use_bias : {false, true}) {
        for (const auto activation : {Activation::kLinear, Activation::kTanh}) {
          const CrossOptions options{
              .projection_dim = projection_dim,
              .diag_scale = diag_scale,
              .use_bias = use_bias,
              .preactivation = activation,
              .kernel_initializer = kWide,
              .bias_initializer = kWide};
          cases.push_back(layer_case<Cross>("Cross", options, {{3, 4}}));
        }
      }
    }
  }
  return cases;
}

std::vector<LayerCase> stacks() {
  std::vector<LayerCase> cases;
  for (const int64_t projection_dim : {1, 3}) {
    for (const int64_t num_layers : {0, 1, 3}) {
      for (const bool use_bias : {false, true}) {
        const MultiLayerDCNOptions options{
            .projection_dim = projection_dim,
            .num_layers = num_layers,
            .use_bias = use_bias,
            .kernel_initializer = kWide,
            .bias_initializer = kWide};
        cases.push_back(
            layer_case<MultiLayerDCN>("MultiLayerDCN", options, {{2, 4}}));
      }
    }
  }
  return cases;
}

std::vector<LayerCase> dot_interactions(const std::vector<size_t>& counts) {
  std::vector<LayerCase> cases;
  for (const bool self : {false, true}) {
    for (const bool skip_gather : {false, true}) {
      for (const size_t count : counts) {
        cases.push_back(layer_case<DotInteraction>(
            "DotInteraction",
            {.self_interaction = self, .skip_gather = skip_gather},
            std::vector<std::vector<int64_t>>(count, {3, 4})));
      }
    }
  }
  return cases;
}

std::vector<LayerCase> mlps() {
  std::vector<LayerCase> cases;
  for (const Activation activation :
       {Activation::kTanh, Activation::kGelu, Activation::kLinear}) {
    for (const bool use_bias : {false, true}) {
      const MLPOptions options{
          .units = {3, 2}, .activation = activation, .use_bias = use_bias};
      cases.push_back(layer_case<MLP>("MLP", options, {{4, 2}, {4, 1}}));
    }
  }
  return cases;
}

std::vector<LayerCase> joined(std::vector<std::vector<LayerCase>> lists) {
  std::vector<LayerCase> cases;
  for (const std::vector<LayerCase>& list : lists) {
    cases.insert(cases.end(), list.begin(), list.end());
  }
  return cases;
}

std::vector<LayerCase> dense_layers() {
  return joined(
      {crosses(),
       stacks(),
       dot_interactions({2, 5}),
       mlps(),
       {layer_case<Cross>(
            "CrossOfANest",
            {.bias_initializer = initializers::Constant{.value = 2}},
            {{3, 2}, {3, 4}}),
        layer_case<MultiLayerDCN>(
            "MultiLayerDCNOfANest",
            {.projection_dim = 2,
             .num_layers = 2,
             .kernel_initializer = initializers::Uniform{.low = -1, .high = 1}},
            {{3, 3}, {3, 1}, {3, 4}}),
        layer_case<MLP>(
            "MLPWithRelu",
            {.units = {4, 3}, .final_activation = Activation::kRelu},
            {{6, 2}, {6, 1}}),
        layer_case<MLP>(
            "MLPOfMany", {.units = {5, 3}}, {{3, 4}, {3, 4}, {3, 4}, {3, 4}}),
        layer_case<MLP>(
            "MLPOfHigherRank",
            {.units = {5, 3}, .activation = Activation::kTanh},
            {{7, 2, 3}, {7, 2, 4}})}});
}

// Other layers, and other arguments of forward().
std::vector<LayerCase> other_layers() {
  std::vector<LayerCase> cases = dot_interactions({1});
  cases.push_back(layer_case<Concatenate>("Concatenate", {}, {{3, 2}, {3, 1}}));
  for (const std::optional<int64_t> projection_dim :
       {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    for (const bool use_bias : {false, true}) {
      cases.push_back(layer_case<Cross>(
          "CrossOfTwo",
          {.projection_dim = projection_dim,
           .diag_scale = 0.5,
           .use_bias = use_bias,
           .preactivation = Activation::kTanh,
           .kernel_initializer = kWide,
           .bias_initializer = kWide},
          {{3, 4}, {3, 4}},
          [](Cross& layer, const Inputs& inputs) {
            return layer->forward(inputs["a"], inputs["b"]);
          }));
    }
  }
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    const EmbedReduceOptions options{
        .input_dim = 7,
        .output_dim = 3,
        .combiner = combiner,
        .embeddings_initializer = initializers::RowId{}};
    const auto of_ids =
        [&](const char* name, const at::Tensor& ids, bool has_weights) {
          cases.push_back(layer_case<EmbedReduce>(
              name,
              options,
              {ids.sizes().vec()},
              [=](EmbedReduce& layer, const Inputs& weights) {
                return has_weights ? layer->forward(ids, weights.leaf())
                                   : layer->forward(ids);
              }));
        };
    const at::Tensor matrix = int64s({1, 2, 2, 6, 0, 1}).view({2, 3});
    of_ids("EmbedReduce", matrix, /*has_weights=*/false);
    of_ids("EmbedReduceOfWeights", matrix, /*has_weights=*/true);
    of_ids("EmbedReduceOfSingles", int64s({4, 4, 1}), /*has_weights=*/true);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    Dense,
    LayerContractTest,
    testing::ValuesIn(dense_layers()),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(
    Other,
    LayerContractTest,
    testing::ValuesIn(other_layers()),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(
    Dense,
    DenseLayerContractTest,
    testing::ValuesIn(dense_layers()),
    name_of_case);

}  // namespace tessera::test::layer_contract_test
