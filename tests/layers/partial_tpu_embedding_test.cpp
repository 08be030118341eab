// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense_parameters.h>
#include <tessera/layers/layer_json.h>
#include <tessera/layers/partial_tpu_embedding.h>
#include <tessera/layers/prefetch.h>

#include "tests/layers/layer_test_util.h"

namespace tessera {

namespace partial_tpu_embedding_test {

// The features of upstream's test, which has a threshold of 10. Two features
// share a small table, and two share a large one.
Nest<FeatureConfig> features() {
  const auto table =
      [](const char* name, int64_t vocabulary_size, int64_t dim) {
        return make_table(
            {.name = name,
             .vocabulary_size = vocabulary_size,
             .dim = dim,
             .combiner = Combiner::kSum});
      };
  const auto five = table("", 5, 3);
  const auto twenty = table("twenty", 20, 2);
  const auto eight = table("", 8, 4);
  const auto nine = table("nine", 9, 2);
  const auto fifteen = table("", 15, 3);
  return {
      {"a", FeatureConfig{.table = five}},
      {"b", FeatureConfig{.table = twenty}},
      {"c",
       Nest<FeatureConfig>::list(
           {FeatureConfig{.table = eight},
            FeatureConfig{.table = twenty, .max_sequence_length = 2}})},
      {"d", FeatureConfig{.table = nine}},
      {"e", FeatureConfig{.table = fifteen}},
      {"f", FeatureConfig{.table = five}}};
}

PartialTPUEmbeddingOptions options(std::optional<int64_t> size_threshold) {
  return {
      .features = features(),
      .optimizer = optim::SGD{.learning_rate = 0.5},
      .size_threshold = size_threshold,
      .seed = 3};
}

Features batch() {
  using test::int64s;
  return {
      {"a", int64s({1, 4})},
      {"b", RaggedFeature{int64s({19, 0, 3}), int64s({0, 2, 3})}},
      {"c",
       Features::list(
           {RaggedFeature{int64s({7, 1}), int64s({0, 0, 2})},
            RaggedFeature{int64s({5, 6, 7}), int64s({0, 3, 3})}})},
      {"d", int64s({8, 8})},
      {"e", int64s({14, 2})},
      {"f", int64s({4, 0})}};
}

at::Tensor loss_of(const Nest<at::Tensor>& activations) {
  at::Tensor loss = at::zeros({});
  double factor = 1.0;
  for (const at::Tensor& activation : activations.flatten()) {
    loss = loss + factor * activation.square().sum();
    factor += 1.0;
  }
  return loss;
}

TEST(PartialTPUEmbeddingTest, LargeTablesAreFusedAndSmallOnesAreParameters) {
  const PartialTPUEmbedding layer(options(10));
  EXPECT_EQ(
      layer->tpu_embedding()->options().features.paths(),
      (std::vector<std::string>{"b", "c/1", "e"}));
  EXPECT_EQ(
      layer->small_embedding()->options().features.paths(),
      (std::vector<std::string>{"a", "c/0", "d", "f"}));
  // Shared small tables are one parameter: five, eight, nine.
  EXPECT_EQ(layer->small_embedding()->parameters().size(), 3U);
  EXPECT_EQ(dense_parameters(*layer).size(), 3U);
  EXPECT_EQ(layer->parameters().size(), 4U);  // with the virtual variable
  // The numbers of unnamed tables count the tables of both sides.
  std::vector<std::string> names;
  for (const auto& table : layer->tpu_embedding()->embedding_tables()) {
    names.push_back(table.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"twenty", "table_4"}));
}

TEST(PartialTPUEmbeddingTest, ArchivesHaveTheNamesOfOlderVersions) {
  const PartialTPUEmbedding layer(options(10));
  const auto children = layer->named_children();
  EXPECT_EQ(
      children.keys(),
      (std::vector<std::string>{"tpu_embedding", "dense_embedding"}));
}

TEST(PartialTPUEmbeddingTest, ATableAsLargeAsTheThresholdIsSmall) {
  const PartialTPUEmbedding layer(options(15));
  EXPECT_EQ(
      layer->tpu_embedding()->options().features.paths(),
      (std::vector<std::string>{"b", "c/1"}));
}

TEST(PartialTPUEmbeddingTest, AllTablesMayBeOnOneSide) {
  const PartialTPUEmbedding all_small(options(std::nullopt));
  EXPECT_TRUE(all_small->tpu_embedding().is_empty());
  EXPECT_EQ(dense_parameters(*all_small).size(), 5U);
  const PartialTPUEmbedding all_tpu(options(0));
  EXPECT_TRUE(all_tpu->small_embedding().is_empty());
  EXPECT_TRUE(dense_parameters(*all_tpu).empty());
}

// SGD is the same rule on both sides.
TEST(PartialTPUEmbeddingTest, TrainsLikeOneEmbeddingOverAllTables) {
  for (const std::optional<int64_t> threshold :
       {std::optional<int64_t>(0),
        std::optional<int64_t>(10),
        std::optional<int64_t>()}) {
    PartialTPUEmbedding layer(options(threshold));
    TPUEmbedding whole = test::layer_of(
        features(), optim::SGD{.learning_rate = 0.5}, {.seed = 3});
    torch::optim::SGD optimizer(layer->parameters(), 0.5);
    for (int64_t step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const auto activations = layer->forward(batch());
      const auto expected = whole->forward(batch());
      EXPECT_EQ(activations.paths(), expected.paths());
      for (size_t i = 0; i < expected.flatten().size(); ++i) {
        test::expect_close(activations.flatten()[i], expected.flatten()[i]);
      }
      loss_of(activations).backward();
      loss_of(expected).backward();
      optimizer.step();
    }
  }
}

TEST(PartialTPUEmbeddingTest, WeightsGoToTheirFeatures) {
  PartialTPUEmbedding layer(options(10));
  TPUEmbedding whole = test::layer_of(features(), {}, {.seed = 3});
  const Weights weights{
      {"b", std::optional<Feature>(test::floats({0.5, 2.0, 3.0}))},
      {"c",
       Weights::list(
           {std::optional<Feature>(test::floats({4.0, 0.25})), std::nullopt})}};
  const auto actual = layer->forward(batch(), weights).flatten();
  const auto expected = whole->forward(batch(), weights).flatten();
  for (size_t i = 0; i < expected.size(); ++i) {
    test::expect_close(actual[i], expected[i]);
  }
  EXPECT_VALUE_ERROR(
      layer->forward(batch(), Weights::list({})),
      "[weights] expected a map here, but got a list");
}

TEST(PartialTPUEmbeddingTest, PrefetchesLikeOneLayer) {
  const std::vector<Features> batches(3, batch());
  for (const std::optional<int64_t> threshold :
       {std::optional<int64_t>(0), std::optional<int64_t>(10)}) {
    PartialTPUEmbedding layer(options(threshold));
    layer->eval();
    const at::NoGradGuard no_grad;
    const auto expected = layer->forward(batch()).flatten();
    int64_t count = 0;
    for (auto& [features, activations] :
         prefetch(batches, layer, [](const Features& each) { return each; })) {
      ++count;
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TENSOR_EQ(activations.flatten()[i], expected[i]);
      }
    }
    EXPECT_EQ(count, 3);
  }
}

TEST(PartialTPUEmbeddingTest, FinishForwardRefusesUsedAndForeignForwards) {
  PartialTPUEmbedding layer(options(10));
  auto pending = layer->begin_forward(batch());
  layer->finish_forward(std::move(pending));
  EXPECT_TORCH_ERROR(
      layer->finish_forward(std::move(pending)), "finished already");
  PartialTPUEmbedding other(options(0));
  EXPECT_TORCH_ERROR(
      layer->finish_forward(other->begin_forward(batch())), "another layer");
}

TEST(PartialTPUEmbeddingTest, RoundTripsThroughJson) {
  for (const std::optional<int64_t> threshold :
       {std::optional<int64_t>(), std::optional<int64_t>(10)}) {
    PartialTPUEmbedding layer(options(threshold));
    auto rebuilt =
        from_json<PartialTPUEmbedding>(Json::parse(to_json(layer).dump()));
    EXPECT_EQ(to_json(rebuilt), to_json(layer));
    EXPECT_EQ(rebuilt->options().size_threshold, threshold);
    const auto& features = rebuilt->options().features;
    EXPECT_EQ(features["a"].table, features["f"].table);
    const auto expected = layer->forward(batch()).flatten();
    const auto actual = rebuilt->forward(batch()).flatten();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TENSOR_EQ(actual[i], expected[i]);
    }
  }
}

TEST(PartialTPUEmbeddingTest, SavesLoadsAndClones) {
  PartialTPUEmbedding layer(options(10));
  torch::optim::SGD optimizer(layer->parameters(), 0.5);
  loss_of(layer->forward(batch())).backward();
  optimizer.step();
  std::stringstream archive;
  torch::save(layer, archive);
  PartialTPUEmbedding loaded(options(10));
  torch::load(loaded, archive);
  const auto copy =
      std::dynamic_pointer_cast<PartialTPUEmbeddingImpl>(layer->clone());
  const auto expected = layer->forward(batch()).flatten();
  loss_of(layer->forward(batch())).backward();  // updates the large tables
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TENSOR_EQ(loaded->forward(batch()).flatten()[i], expected[i]);
    EXPECT_TENSOR_EQ(copy->forward(batch()).flatten()[i], expected[i]);
  }
}

TEST(PartialTPUEmbeddingTest, MakeOptimizerTrainsSmallTables) {
  PartialTPUEmbeddingOptions with_rule = options(10);
  with_rule.optimizer = optim::SGD{.learning_rate = 0.5};
  PartialTPUEmbedding layer(with_rule);
  const auto optimizer = make_optimizer(layer->small_embedding());
  const at::Tensor before =
      layer->small_embedding()->read_rows("table_0", 0, 5);
  loss_of(layer->forward(batch())).backward();
  optimizer->step();
  const at::Tensor after = layer->small_embedding()->read_rows("table_0", 0, 5);
  EXPECT_FALSE(at::equal(before[1], after[1]));
  EXPECT_TENSOR_EQ(before[2], after[2]);  // not looked up
}

TEST(PartialTPUEmbeddingTest, ComputesItsOutputShapeAndBuilds) {
  PartialTPUEmbedding layer(options(10));
  const Nest<PartialShape> inputs{
      {"a", PartialShape{2}},
      {"b", PartialShape{2, std::nullopt}},
      {"c",
       Nest<PartialShape>::list(
           {PartialShape{2, std::nullopt}, PartialShape{2, std::nullopt}})},
      {"d", PartialShape{2}},
      {"e", PartialShape{2}},
      {"f", PartialShape{2}}};
  const auto shapes = layer->compute_output_shape(inputs);
  EXPECT_EQ(shapes["a"], (PartialShape{2, 3}));
  EXPECT_EQ(shapes.at("c")[1], (PartialShape{2, 2, 2}));
  layer->build(inputs);
  const auto activations = layer->forward(batch());
  EXPECT_EQ(activations.at("c")[1].sizes(), (std::vector<int64_t>{2, 2, 2}));
}

TEST(PartialTPUEmbeddingTest, ASecondBuildMayFixMoreDimensions) {
  PartialTPUEmbedding layer(PartialTPUEmbeddingOptions{
      .features = test::features_of(
          {{"large", test::plain_table("large", 20, 2)},
           {"small", test::plain_table("small", 5, 2)}}),
      .optimizer = optim::SGD{},
      .size_threshold = 10});
  const auto build = [&](std::optional<int64_t> batch) {
    layer->build(Nest<PartialShape>{
        {"large", PartialShape{batch}}, {"small", PartialShape{batch}}});
  };
  const auto forward = [](PartialTPUEmbedding& embedding, int64_t batch) {
    const at::Tensor ids = at::zeros({batch}, at::kLong);
    return embedding->forward({{"large", ids}, {"small", ids}});
  };
  build(std::nullopt);
  forward(layer, 4);
  build(2);
  const char* const problem = "the output shape is set to [2]";
  EXPECT_VALUE_ERROR(forward(layer, 4), problem);
  EXPECT_EQ((*layer->input_shapes())["small"], PartialShape{2});
  PartialTPUEmbedding copy = test::clone_of(layer);
  EXPECT_VALUE_ERROR(forward(copy, 4), problem);
  auto rebuilt = from_json<PartialTPUEmbedding>(to_json(layer));
  EXPECT_VALUE_ERROR(forward(rebuilt, 4), problem);
  PartialTPUEmbedding loaded(layer->options());
  test::copy_by_archive(layer, loaded);
  EXPECT_VALUE_ERROR(forward(loaded, 4), problem);
  EXPECT_EQ(forward(rebuilt, 2)["large"].sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_VALUE_ERROR(build(3), problem);
}

TEST(PartialTPUEmbeddingTest, LooksUpSomeOfTheFeaturesWithoutGradients) {
  PartialTPUEmbedding layer(options(10));
  const Features whole = batch();
  const at::NoGradGuard no_grad;
  const auto all = layer->forward(whole);
  // Two large features in another order, and a small one.
  const Features some{{"e", whole["e"]}, {"a", whole["a"]}, {"b", whole["b"]}};
  for (const auto& activations :
       {layer->forward(some),
        layer->finish_forward(layer->begin_forward(some))}) {
    EXPECT_EQ(activations.paths(), (std::vector<std::string>{"e", "a", "b"}));
    for (const char* name : {"e", "a", "b"}) {
      EXPECT_TENSOR_EQ(activations[name], all[name]) << name;
    }
  }
  const Features large{
      {"e", whole["e"]}, {"c", whole.at("c")}, {"b", whole["b"]}};
  const auto activations = layer->forward(large);
  EXPECT_TENSOR_EQ(activations["e"], all["e"]);
  EXPECT_TENSOR_EQ(activations["b"], all["b"]);
  EXPECT_TENSOR_EQ(activations.at("c")[1], all.at("c")[1]);
  EXPECT_VALUE_ERROR(layer->forward({{"z", whole["a"]}}), "'z' is not among");
}

TEST(PartialTPUEmbeddingTest, RefusesBadOptionsAndBatches) {
  EXPECT_VALUE_ERROR(
      PartialTPUEmbedding(options(-1)),
      "size_threshold must be >= 0, but got -1");
  EXPECT_VALUE_ERROR(
      PartialTPUEmbedding(PartialTPUEmbeddingOptions{}),
      "[PartialTPUEmbeddingOptions] features must have at least one feature");
  EXPECT_VALUE_ERROR(
      PartialTPUEmbedding(
          PartialTPUEmbeddingOptions{.features = {{"a", FeatureConfig{}}}}),
      "table must be set");
  const auto twin = [] { return test::plain_table("same", 2, 2); };
  EXPECT_VALUE_ERROR(
      PartialTPUEmbedding(PartialTPUEmbeddingOptions{
          .features = test::features_of({{"a", twin()}, {"b", twin()}})}),
      "[TableConfig 'same'] tables of one layer must have different names");
  const FeatureConfig feature{.table = twin()};
  EXPECT_VALUE_ERROR(
      PartialTPUEmbedding(PartialTPUEmbeddingOptions{
          .features =
              {{"a/b", feature}, {"a", Nest<FeatureConfig>{{"b", feature}}}}}),
      "[PartialTPUEmbeddingOptions] features must have different paths, but two "
      "have the path 'a/b'. Rename a key of the nest.");
  PartialTPUEmbedding layer(options(10));
  EXPECT_VALUE_ERROR(
      layer->forward({{"a", test::int64s({1})}}), "missing entry");
  const Features good = batch();
  const auto replaced = [&](size_t leaf, const Feature& feature) {
    auto leaves = good.flatten();
    leaves[leaf] = feature;
    return good.pack(leaves);
  };
  EXPECT_INDEX_ERROR(
      layer->forward(replaced(0, test::int64s({1, 5}))), "feature 'a'");
  EXPECT_INDEX_ERROR(
      layer->forward(replaced(5, test::int64s({15, 0}))), "feature 'e'");
  EXPECT_VALUE_ERROR(
      layer->forward(good, {{"z", std::nullopt}}), "unexpected entry 'z'");
}

}  // namespace partial_tpu_embedding_test

}  // namespace tessera
