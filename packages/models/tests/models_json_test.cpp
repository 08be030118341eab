// SPDX-License-Identifier: Apache-2.0
// What holds for all layers of this package.
#include <tessera/models/causal_self_attention.h>
#include <tessera/models/deep_fm.h>
#include <tessera/models/dice.h>
#include <tessera/models/din_attention.h>
#include <tessera/models/factorization_machine.h>
#include <tessera/models/matrix_factorization.h>
#include <tessera/models/mixture_of_experts.h>
#include <tessera/models/register_models.h>
#include <tessera/models/retrieval.h>
#include <tessera/models/sampling_probability.h>
#include <tessera/models/transformer_block.h>
#include <tessera/serialization/json_file.h>

#include "tests/layers/layer_contract.h"
#include "tests/test_files.h"

namespace tessera::test::models_json_test {

Json reread(const Json& json) {
  return parse_json(json.dump());
}

std::vector<LayerCase> cases() {
  register_models();
  const auto with_splits = [](auto& layer, const Inputs& x) {
    return layer->forward(x.leaf(), int64s({0, 1, 4}));
  };
  std::vector<LayerCase> cases{
      layer_case<CausalSelfAttention>(
          "CausalSelfAttention",
          {.num_heads = 3, .use_bias = false},
          {{4, 12}},
          with_splits),
      layer_case<DeepFM>(
          "DeepFM",
          {.hidden_units = {4}, .activation = Activation::kTanh},
          {{3, 5}, {3, 2, 5}}),
      layer_case<Dice>(
          "Dice",
          {.momentum = 0.5},
          {{4, 3}},
          [](auto& layer, const Inputs& x) {
            return layer->forward(x.leaf());
          }),
      layer_case<FactorizationMachine>(
          "FactorizationMachine", {}, {{3, 4}, {3, 2, 4}}),
      layer_case<MatrixFactorization>(
          "MatrixFactorization",
          {.global_mean = 0.1},
          {{3, 5}, {3, 5}},
          [](auto& layer, const Inputs& x) {
            return layer->forward({{"user", x["a"]}, {"item", x["b"]}});
          }),
      layer_case<MMoE>(
          "MMoE",
          {.tasks = {"click", "buy"},
           .num_experts = 3,
           .expert_units = {6, 4},
           .tower_units = {5, 1}},
          {{3, 7}},
          [](auto& layer, const Inputs& x) {
            return at::cat(layer->forward(x).flatten(), 1);
          }),
      layer_case<Retrieval>(
          "Retrieval",
          {.temperature = 0.5, .reduction = LossReduction::kMean},
          {{3, 4}, {5, 4}},
          [](auto& layer, const Inputs& x) {
            return layer->forward(x["a"], x["b"]);
          })};
  for (const bool gated : {false, true}) {
    for (const NormOrder norm : {NormOrder::kPre, NormOrder::kPost}) {
      cases.push_back(layer_case<TransformerBlock>(
          "TransformerBlock",
          {.num_heads = 2, .feed_forward_dim = 5, .norm = norm, .gated = gated},
          {{4, 8}},
          with_splits));
    }
  }
  cases.push_back(layer_case<TransformerBlock>(
      "TransformerBlock",
      {.norm = NormOrder::kPost,
       .filter = SequenceFilterOptions{.share = 0.7, .length = 4}},
      {{4, 8}},
      with_splits));
  for (const DINActivation activation :
       {DINActivation::kDice,
        DINActivation::kPRelu,
        DINActivation::kRelu,
        DINActivation::kSigmoid}) {
    for (const bool use_softmax : {false, true}) {
      cases.push_back(layer_case<DINAttention>(
          "DINAttention",
          {.hidden_units = {6, 4},
           .activation = activation,
           .use_softmax = use_softmax},
          {{3, 5}, {3, 4, 5}},
          [](auto& layer, const Inputs& x) {
            return layer->forward(x["a"], x["b"], int64s({2, 0, 4}));
          }));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    LayerContractTest,
    testing::ValuesIn(cases()),
    name_of_case);

// No layer of this package takes any nest of dense inputs.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DenseLayerContractTest);

TEST(ModelsJsonTest, EachClassIsBuiltFromItsJson) {
  register_models();
  register_models();  // changes nothing
  const Json none = Json::object();
  const std::map<std::string, Json> configs{
      {"CausalSelfAttention", none},
      {"DINAttention", none},
      {"DeepFM", {{"hidden_units", {2}}}},
      {"Dice", none},
      {"FactorizationMachine", none},
      {"MMoE", {{"tasks", {"click"}}, {"expert_units", {2}}}},
      {"MatrixFactorization", none},
      {"Retrieval", none},
      {"SASRec", {{"num_items", 5}}},
      {"SamplingProbability", none},
      {"SimpleX", {{"num_users", 3}, {"num_items", 5}}},
      {"TransformerBlock", none}};
  for (const auto& [name, config] : configs) {
    SCOPED_TRACE(name);
    const auto layer =
        layer_from_json({{"class_name", name}, {"config", config}});
    const Json json = reread(to_json(*layer));
    EXPECT_EQ(json.at("class_name"), name);
    EXPECT_EQ(reread(to_json(*layer_from_json(json))), json);
  }
}

TEST(ModelsJsonTest, SamplingProbabilityIsRebuiltFromItsJson) {
  register_models();
  SamplingProbability share(SamplingProbabilityOptions{.num_buckets = 8});
  share->forward(int64s({1, 2, 1}));
  auto same_share = from_json<SamplingProbability>(reread(to_json(share)));
  EXPECT_EQ(same_share->options(), share->options());
  EXPECT_EQ(
      share->compute_output_shape(PartialShape{std::nullopt}).leaf().size(), 1);
}

// Version 0.2 wrote the files. tests/layers/dense/version_0_2_test.cpp says how.
TEST(ModelsJsonTest, ALayerOfVersion02IsUnchanged) {
  register_models();
  auto layer =
      from_json<Retrieval>(load_json(test_file("version_0_2/retrieval.json")));
  std::vector<at::Tensor> outputs;
  torch::load(outputs, test_file("version_0_2/outputs.pt"));
  const at::Tensor candidates = at::arange(12, at::kFloat).view({4, 3}).sin();
  expect_close(
      layer->forward(candidates.slice(0, 0, 3).cos(), candidates),
      outputs.at(7));
}

}  // namespace tessera::test::models_json_test
