// SPDX-License-Identifier: Apache-2.0
// The layers of this package as JSON.
#include <tessera/layers/layer_json.h>
#include <tessera/models/register_models.h>
#include <tessera/models/retrieval.h>
#include <tessera/models/sampling_probability.h>
#include <tessera/models/sasrec.h>
#include <tessera/models/simplex.h>

#include "tests/test_util.h"

namespace tessera::models_json_test {

Json reread(const Json& json) {
  return parse_json(json.dump());
}

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

TEST(ModelsJsonTest, RetrievalIsRebuiltFromItsJson) {
  register_models();
  Retrieval retrieval(
      RetrievalOptions{.temperature = 0.5, .reduction = LossReduction::kMean});
  const at::Tensor query = at::randn({3, 4});
  const at::Tensor candidate = at::randn({5, 4});
  const at::Tensor loss = retrieval->forward(query, candidate);
  auto same_retrieval = from_json<Retrieval>(reread(to_json(retrieval)));
  EXPECT_EQ(same_retrieval->options(), retrieval->options());
  EXPECT_TRUE(same_retrieval->input_shapes().has_value());
  EXPECT_TRUE(at::equal(same_retrieval->forward(query, candidate), loss));
}

TEST(ModelsJsonTest, SamplingProbabilityIsRebuiltFromItsJson) {
  register_models();
  SamplingProbability share(SamplingProbabilityOptions{.num_buckets = 8});
  share->forward(test::int64s({1, 2, 1}));
  auto same_share = from_json<SamplingProbability>(reread(to_json(share)));
  EXPECT_EQ(same_share->options(), share->options());
  EXPECT_EQ(
      share->compute_output_shape(PartialShape{std::nullopt}).leaf().size(), 1);
}

}  // namespace tessera::models_json_test
