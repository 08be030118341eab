// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of include/tessera/common/, tables/, features/,
// engine/ and distributed/, which check_docs.cmake compares with them.
#include <tessera/tessera.h>
#include <torch/optim/adagrad.h>

#include "tests/docs/pages_fixture.h"
#include "tests/test_util.h"

namespace tessera {
namespace reference_engine_test {

using test::expect_close;

/// Row i of the tables has the values i.
class EngineReferenceTest : public test::PagesTest {
 protected:
  static TablePtr numbered_table(const std::string& name, int64_t rows = 10) {
    return make_table(
        {.name = name,
         .vocabulary_size = rows,
         .dim = 2,
         .combiner = Combiner::kSum,
         .initializer = initializers::RowId{}});
  }
  static TPUEmbedding layer_of(Nest<FeatureConfig> features) {
    return TPUEmbedding(std::move(features), optim::SGD{.learning_rate = 1.0});
  }
  static at::Tensor initial_rows(const TablePtr& table) {
    const at::Tensor rows = at::empty({table->vocabulary_size, table->dim});
    initialize_rows(*table->initializer, 0, table->name, 0, rows);
    return rows;
  }
  /// Rows of width 2.
  static at::Tensor rows(const std::vector<float>& values) {
    return at::tensor(values).unsqueeze(1).expand({-1, 2});
  }

  TablePtr users = numbered_table("users");
  TablePtr movies = numbered_table("movies");
};

// Common.

TEST_F(EngineReferenceTest, JsonLimits) {
  std::string text = "{\"ids\": [1, 2]}";
  const auto parse = [&] {
    // snippet: JsonLimits
    // Text from a client: at most 1 MiB, and no list of more than 100 values.
    const Json request =
        parse_json(text, "[request]", {.bytes = 1 << 20, .list_size = 100});
    // end snippet
    return request.dump();
  };
  EXPECT_EQ(parse(), R"({"ids":[1,2]})");
  text = "[0";
  for (int i = 0; i < 100; ++i) {
    text += ", 0";
  }
  text += "]";
  EXPECT_VALUE_ERROR(parse(), "[request]");
}

// Tables.

TEST_F(EngineReferenceTest, TableConfig) {
  // snippet: TableConfig
  const TablePtr users = make_table(
      {.name = "users",
       .vocabulary_size = 1000,
       .dim = 16,
       .optimizer = optim::Adagrad{.learning_rate = 0.05}});
  // Two features share the table.
  const Nest<FeatureConfig> features{
      {"user", FeatureConfig{.table = users}},
      {"friends", FeatureConfig{.table = users}}};
  // end snippet
  TPUEmbedding embedding(TPUEmbeddingOptions{.features = features});
  EXPECT_EQ(embedding->embedding_tables().size(), 1);
  const auto activations = embedding->forward(
      {{"user", torch::tensor({3})}, {"friends", torch::tensor({3})}});
  expect_close(activations["user"], activations["friends"]);
}

TEST_F(EngineReferenceTest, ATableOfFewBytes) {
  // snippet: small_table
  const TablePtr users = make_table(
      {.name = "users",
       .vocabulary_size = 1000,
       .dim = 64,
       .optimizer = optim::RowWiseAdagrad{.learning_rate = 0.05},
       .dtype = at::kChar});
  // end snippet
  const MemoryPlan plan =
      memory_plan({.features = {{"user", FeatureConfig{.table = users}}}});
  EXPECT_EQ(plan.bytes(), 1000 * 70);
}

TEST_F(EngineReferenceTest, FrequentRowsInFloat32) {
  const at::Tensor ids = torch::tensor({3, 700});
  // snippet: frequent_rows
  // The ids are in the order of their frequency. The first 50 have rows of float32.
  constexpr int64_t kFrequent = 50;
  const auto feature = [](TableConfig table) {
    table.combiner = Combiner::kSum;
    return FeatureConfig{
        .table = make_table(table), .out_of_range = OutOfRange::kZero};
  };
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features =
          {{"frequent",
            feature(
                {.name = "frequent", .vocabulary_size = kFrequent, .dim = 64})},
           {"others",
            feature(
                {.name = "others",
                 .vocabulary_size = 1000 - kFrequent,
                 .dim = 64,
                 .dtype = at::kChar})}},
      .optimizer = optim::RowWiseAdagrad{.learning_rate = 0.05}});
  // Each id is out of the range of one table, which gives zeros.
  const auto activations =
      embedding->forward({{"frequent", ids}, {"others", ids - kFrequent}});
  const at::Tensor vectors = activations["frequent"] + activations["others"];
  // end snippet
  const EmbeddingTables tables = embedding->embedding_tables();
  EXPECT_TRUE(at::equal(vectors[0], tables["frequent"][3]));
  expect_close(vectors[1], tables["others"][650], 1e-6, 1e-6);
  const auto bag = [](const at::Tensor& of) {
    return RaggedFeature{.values = of, .row_splits = torch::tensor({0, 2})};
  };
  const auto pooled = embedding->forward(
      {{"frequent", bag(ids)}, {"others", bag(ids - kFrequent)}});
  expect_close(
      pooled["frequent"] + pooled["others"],
      vectors.sum(0, /*keepdim=*/true),
      1e-6,
      1e-6);
}

TEST_F(EngineReferenceTest, QuantizationConfig) {
  // snippet: QuantizationConfig
  const TablePtr users = make_table(
      {.name = "users",
       .vocabulary_size = 1000,
       .dim = 16,
       .quantization = QuantizationConfig{
           .num_buckets = 256, .lower = -1.0, .upper = 1.0}});
  // end snippet
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features = {{"user", FeatureConfig{.table = users}}}});
  const at::Tensor activations =
      embedding->forward({{"user", torch::arange(1000)}})["user"];
  const at::Tensor buckets = (activations + 1) * (255 / 2.0);
  expect_close(buckets, buckets.round(), 0.0, 1e-3);
  EXPECT_FALSE(at::equal(activations, embedding->embedding_tables()[users]));
}

TEST_F(EngineReferenceTest, EmbeddingTables) {
  TPUEmbedding embedding = layer_of({{"user", FeatureConfig{.table = users}}});
  // snippet: EmbeddingTables
  const EmbeddingTables tables = embedding->embedding_tables();
  tables["users"].fill_(0.1);  // or tables[users]; changes the layer
  for (const auto& table : tables) {
    std::cout << table.name << " " << table.parameters.sizes() << "\n";
  }
  // end snippet
  expect_close(
      embedding->forward({{"user", torch::tensor({3})}})["user"], rows({0.1F}));
}

TEST_F(EngineReferenceTest, Zeros) {
  // snippet: Zeros
  const TablePtr biases = make_table(
      {.name = "biases",
       .vocabulary_size = 1000,
       .dim = 1,
       .initializer = initializers::Zeros{}});
  // end snippet
  expect_close(initial_rows(biases), torch::zeros({1000, 1}));
}

TEST_F(EngineReferenceTest, Constant) {
  // snippet: Constant
  const TablePtr scales = make_table(
      {.name = "scales",
       .vocabulary_size = 1000,
       .dim = 1,
       .initializer = initializers::Constant{.value = 1.0}});
  // end snippet
  expect_close(initial_rows(scales), torch::ones({1000, 1}));
}

TEST_F(EngineReferenceTest, Uniform) {
  // snippet: Uniform
  const TablePtr users = make_table(
      {.name = "users",
       .vocabulary_size = 1000,
       .dim = 16,
       .initializer = initializers::Uniform{.low = -0.1, .high = 0.1}});
  // end snippet
  const at::Tensor values = initial_rows(users);
  EXPECT_GE(values.min().item<float>(), -0.1F);
  EXPECT_LT(values.max().item<float>(), 0.1F);
  EXPECT_NEAR(values.std().item<double>(), 0.2 / std::sqrt(12.0), 1e-3);
}

TEST_F(EngineReferenceTest, Normal) {
  // snippet: Normal
  const TablePtr users = make_table(
      {.name = "users",
       .vocabulary_size = 1000,
       .dim = 16,
       .initializer = initializers::Normal{.stddev = 0.01}});
  // end snippet
  EXPECT_NEAR(initial_rows(users).std().item<double>(), 0.01, 5e-4);
  EXPECT_NEAR(initial_rows(users).mean().item<double>(), 0.0, 5e-4);
}

TEST_F(EngineReferenceTest, TruncatedNormal) {
  // snippet: TruncatedNormal
  const TablePtr users = make_table(
      {.name = "users",
       .vocabulary_size = 1000,
       .dim = 16,
       .initializer = initializers::TruncatedNormal{.stddev = 0.01}});
  // end snippet
  EXPECT_LE(initial_rows(users).abs().max().item<double>(), 0.02 + 1e-6);
  EXPECT_NEAR(initial_rows(users).std().item<double>(), 0.0088, 5e-4);
}

TEST_F(EngineReferenceTest, RowId) {
  // snippet: RowId
  // For a test: a lookup of id 7 gives 7.
  const TablePtr users = make_table(
      {.name = "users",
       .vocabulary_size = 1000,
       .dim = 1,
       .initializer = initializers::RowId{}});
  // end snippet
  expect_close(initial_rows(users).squeeze(1), torch::arange(1000));
}

TEST_F(EngineReferenceTest, Callable) {
  const at::Tensor vectors = torch::rand({1000, 16});
  // snippet: Callable
  const auto rows_of = [=](const at::Tensor& ids, int64_t /*dim*/) {
    return vectors.index_select(0, ids);  // from another model
  };
  const TablePtr users = make_table(
      {.name = "users",
       .vocabulary_size = 1000,
       .dim = 16,
       .initializer = initializers::Callable("vectors", rows_of)});
  // end snippet
  expect_close(initial_rows(users), vectors);
}

// Features.

TEST_F(EngineReferenceTest, SparseFeature) {
  TPUEmbedding embedding = layer_of({{"tags", FeatureConfig{.table = movies}}});
  // snippet: SparseFeature
  // Two bags: {1, 9} and {4}.
  const SparseFeature tags{
      .indices = torch::tensor({{0, 0}, {0, 1}, {1, 0}}),
      .values = torch::tensor({1, 9, 4}),
      .dense_shape = torch::tensor({2, 2})};
  const auto activations = embedding->forward({{"tags", tags}});
  // end snippet
  expect_close(activations["tags"], rows({1 + 9, 4}));
}

TEST_F(EngineReferenceTest, RaggedFeature) {
  TPUEmbedding embedding =
      layer_of({{"history", FeatureConfig{.table = movies}}});
  // snippet: RaggedFeature
  // Three bags: {7, 8}, {} and {9}.
  const RaggedFeature history{
      .values = torch::tensor({7, 8, 9}),
      .row_splits = torch::tensor({0, 2, 2, 3})};
  const auto activations = embedding->forward({{"history", history}});
  // end snippet
  expect_close(activations["history"], rows({7 + 8, 0, 9}));
}

TEST_F(EngineReferenceTest, FeatureConfig) {
  // snippet: FeatureConfig
  const Nest<FeatureConfig> features{
      {"user", FeatureConfig{.table = users}},
      {"watched", FeatureConfig{.table = movies}},  // [batch, dim]
      {"session",  // [batch, 20, dim]
       FeatureConfig{.table = movies, .max_sequence_length = 20}}};
  // end snippet
  const auto bag =
      RaggedFeature::from_lengths(torch::tensor({1, 2}), torch::tensor({2}));
  const auto activations = layer_of(features)->forward(
      {{"user", torch::tensor({3})}, {"watched", bag}, {"session", bag}});
  expect_close(activations["user"], rows({3}));
  expect_close(activations["watched"], rows({1 + 2}));
  EXPECT_EQ(activations["session"].sizes(), (at::IntArrayRef{1, 20, 2}));
}

TEST_F(EngineReferenceTest, Nest) {
  // snippet: Nest
  const Nest<int> scores{{"user", 1}, {"movie", 2}};
  const int score = scores["user"];  // operator[] gives the leaf
  const Nest<int> user = scores.at("user");  // at() gives the sub-nest
  for (const auto& [path, leaf] : scores) {
    std::cout << path << " " << leaf << "\n";
  }
  const Nest<int> two{1, 2};  // two or more values: a list
  const auto one = Nest<int>::list({1});  // Nest<int>{1} is a leaf
  // end snippet
  EXPECT_EQ(score, 1);
  EXPECT_TRUE(user.is_leaf());
  EXPECT_EQ(scores.paths(), (std::vector<std::string>{"user", "movie"}));
  EXPECT_EQ(two.size(), 2);
  EXPECT_TRUE(one.is_list());
}

TEST_F(EngineReferenceTest, PartialShape) {
  Cross cross;
  // snippet: PartialShape
  const PartialShape shape{std::nullopt, 64};
  cross->build(shape);  // makes parameters for inputs [batch, 64]
  std::cout << to_string(shape);  // [?, 64]
  // end snippet
  EXPECT_EQ(to_string(shape), "[?, 64]");
  EXPECT_EQ(cross->forward(torch::ones({3, 64})).size(1), 64);
}

// Engine.

TEST_F(EngineReferenceTest, EmbeddingEngine) {
  const auto ids = torch::tensor({3, 3});
  const auto loss_of = [](const Nest<at::Tensor>& activations) {
    return activations["user"].sum();
  };
  // snippet: EmbeddingEngine
  EmbeddingEngine engine(
      {.features = {{"user", FeatureConfig{.table = users}}},
       .optimizer = optim::Adagrad{.learning_rate = 0.05}});
  engine.enqueue({{"user", ids}});
  const auto activations = engine.dequeue();
  loss_of(activations).backward();
  engine.apply_gradients();  // the grad() of the activations
  // end snippet
  expect_close(activations["user"], rows({3, 3}));
  const float step = 0.05F * 2 / std::sqrt(0.1F + 2 * 2);
  expect_close(engine.read_rows("users", 2, 4), rows({2, 3 - step}));
}

TEST_F(EngineReferenceTest, EnqueueOptions) {
  EmbeddingEngine engine(
      {.features = {{"user", FeatureConfig{.table = users}}},
       .optimizer = optim::SGD{}});
  engine.enqueue({{"user", torch::tensor({1})}});
  const auto ids = torch::tensor({5});
  // snippet: EnqueueOptions
  engine.enqueue(
      {{"user", ids}}, {}, {.training = false, .name = "validation"});
  const auto activations = engine.dequeue("validation");
  // end snippet
  expect_close(activations["user"], rows({5}));
  EXPECT_FALSE(activations["user"].requires_grad());
  expect_close(engine.dequeue()["user"], rows({1}));
}

TEST_F(EngineReferenceTest, Checkpoints) {
  TPUEmbedding embedding = layer_of({{"user", FeatureConfig{.table = users}}});
  embedding->update_embedding_table("users", torch::full({10, 2}, 0.5));
  torch::nn::Linear tower(2, 1);
  // snippet: CheckpointOptions
  embedding->save_checkpoint(
      "run/checkpoints",
      {.keep_last = 3,
       .full_every = 10,  // the others have only changed rows
       .extra = [&](torch::serialize::OutputArchive& archive) {
         tower->save(archive);
       }});
  // end snippet
  embedding = layer_of(
      {{"user", FeatureConfig{.table = numbered_table("users", 12)}},
       {"movie", FeatureConfig{.table = movies}}});
  // snippet: LoadOptions
  // The model now has more users, and another table, which keeps its values.
  embedding->load_checkpoint(
      "run/checkpoints", {.tables = {"users"}, .grown = true});
  // end snippet
  expect_close(embedding->read_rows("users", 9, 12), rows({0.5F, 10, 11}));
  expect_close(embedding->read_rows("movies", 9, 10), rows({9}));
  torch::nn::Linear loaded(2, 1);
  layer_of({{"user", FeatureConfig{.table = users}}})
      ->load_checkpoint(
          "run/checkpoints",
          {.extra = [&](torch::serialize::InputArchive& archive) {
            loaded->load(archive);
          }});
  expect_close(loaded->weight, tower->weight);
}

TEST_F(EngineReferenceTest, Strategy) {
  const Nest<FeatureConfig> features{{"user", FeatureConfig{.table = users}}};
  // snippet: Strategy
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features = features,
      .strategy = Strategy::host({.sparse_gradients = true})});
  torch::optim::Adagrad optimizer(embedding->parameters(), 0.1);
  // end snippet
  embedding->forward({{"user", torch::tensor({3})}})["user"].sum().backward();
  optimizer.step();
  expect_close(embedding->read_rows("users", 2, 4), rows({2, 3 - 0.1F}));
}

TEST_F(EngineReferenceTest, ServingLookup) {
  const at::Tensor rows = torch::rand({10, 2});
  const auto ids = torch::tensor({2, 0});
  // snippet: serving_embedding_lookup
  const EmbeddingTables tables({{.config = users, .parameters = rows}});
  const auto activations = serving_embedding_lookup(
      {{"user", ids}}, {}, tables, {{"user", FeatureConfig{.table = users}}});
  // end snippet
  expect_close(activations["user"], rows.index_select(0, ids));
}

}  // namespace reference_engine_test

namespace distributed {
namespace reference_engine_test {

TEST(PlanReferenceTest, ShardingPlan) {
  const Nest<FeatureConfig> features{
      {"user",
       FeatureConfig{
           .table = make_table(
               {.name = "users", .vocabulary_size = 1'000'000, .dim = 16})}},
      {"weekday",
       FeatureConfig{
           .table = make_table(
               {.name = "weekdays", .vocabulary_size = 7, .dim = 16})}}};
  const optim::OptimizerSpec optimizer = optim::Adagrad{};
  // snippet: ShardingPlan
  const ShardingPlan plan = plan_sharding(features, optimizer, {.ranks = 8});
  std::cout << plan.to_string();
  const ShardingOptions options{.placement = plan.placement()};
  // end snippet
  EXPECT_EQ(options.placement.at("users"), TablePlacement::row_wise());
  EXPECT_EQ(options.placement.at("weekdays"), TablePlacement::data_parallel());
}

}  // namespace reference_engine_test
}  // namespace distributed
}  // namespace tessera
