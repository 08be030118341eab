// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of include/tessera/layers/ and serialization/, which
// check_docs.cmake compares with them.
#include <tessera/tessera.h>
#include <torch/csrc/jit/serialization/import.h>

#include "tests/docs/pages_fixture.h"
#include "tests/test_util.h"

namespace tessera::reference_layers_test {

using test::expect_close;

/// A model with two inputs.
struct PricedRankerImpl : torch::nn::Module {
  explicit PricedRankerImpl(const TPUEmbeddingOptions& options)
      : embedding(register_module("embedding", TPUEmbedding(options))),
        tower(register_module("tower", torch::nn::Linear(7, 1))) {}

  at::Tensor forward(const Features& features, const at::Tensor& prices) {
    const at::Tensor activations =
        Concatenate()->forward(embedding->forward(features));
    return tower->forward(at::cat({activations, prices}, 1));
  }

  TPUEmbedding embedding;
  torch::nn::Linear tower;
};
TORCH_MODULE(PricedRanker);

struct Batch {
  at::Tensor users;
  at::Tensor labels;
};

class LayersReferenceTest : public test::PagesTest {
 protected:
  at::Tensor rows_of(const TPUEmbedding& layer, const std::string& name) {
    return layer->embedding_tables()[name].clone();
  }

  TablePtr users =
      make_table({.name = "users", .vocabulary_size = 10, .dim = 2});
  TablePtr movies =
      make_table({.name = "movies", .vocabulary_size = 20, .dim = 2});
  at::Tensor user_ids = torch::tensor({3, 9});
  /// Three features of two examples.
  TPUEmbeddingOptions options{
      .features =
          {{"user", FeatureConfig{.table = users}},
           {"movie", FeatureConfig{.table = movies}},
           {"director", FeatureConfig{.table = movies}}},
      .optimizer = optim::SGD{.learning_rate = 1.0}};
  Features features{
      {"user", user_ids},
      {"movie", torch::tensor({1, 2})},
      {"director", torch::tensor({15, 16})}};
};

// Embeddings.

TEST_F(LayersReferenceTest, MemoryPlan) {
  testing::internal::CaptureStdout();
  // snippet: memory_plan
  const MemoryPlan plan = memory_plan(options, /*batch_size=*/4096);
  std::cout << to_string(plan);
  // end snippet
  EXPECT_CONTAINS(
      testing::internal::GetCapturedStdout(), "table 'movies': 0.0 MiB");
  EXPECT_EQ(plan.tables.size(), 2);
  EXPECT_EQ(plan.step, 2 * 3 * 4096 * 2 * 4);
}

TEST_F(LayersReferenceTest, TPUEmbedding) {
  const auto loss_of = [](const at::Tensor& activation) {
    return activation.sum();
  };
  // snippet: TPUEmbeddingImpl
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features = {{"user", FeatureConfig{.table = users}}},
      .optimizer = optim::Adagrad{.learning_rate = 0.05}});
  const auto activations = embedding->forward({{"user", user_ids}});
  loss_of(activations["user"]).backward();  // updates the tables
  // end snippet
  expect_close(
      rows_of(embedding, "users").index_select(0, user_ids),
      activations["user"] - 0.05 / std::sqrt(0.1 + 1));
}

TEST_F(LayersReferenceTest, TPUEmbeddingHasAShortForm) {
  // snippet: TPUEmbedding
  TPUEmbedding embedding(
      {{"user", FeatureConfig{.table = users}}}, optim::Adagrad{});
  // end snippet
  EXPECT_EQ(
      embedding->options().optimizer, optim::OptimizerSpec(optim::Adagrad{}));
  EXPECT_EQ(embedding->options().features["user"].table, users);
}

TEST_F(LayersReferenceTest, PendingForward) {
  TPUEmbedding embedding(
      {{"user", FeatureConfig{.table = users}}},
      optim::SGD{.learning_rate = 1.0});
  const at::Tensor before = rows_of(embedding, "users");
  const Features next_batch{{"user", torch::tensor({9})}};
  const auto loss_of = [](const Nest<at::Tensor>& activations) {
    return activations["user"].sum();
  };
  auto activations = embedding->forward({{"user", user_ids}});
  // snippet: PendingForward
  PendingForward pending = embedding->begin_forward(next_batch);
  loss_of(activations).backward();  // meanwhile, the next batch is looked up
  activations = embedding->finish_forward(std::move(pending));
  // end snippet
  expect_close(activations["user"][0], before[9]);
  expect_close(rows_of(embedding, "users")[9], before[9] - 1);
}

TEST_F(LayersReferenceTest, Prefetch) {
  const std::vector<Batch> batches(
      3, Batch{.users = user_ids, .labels = torch::ones({2, 1})});
  TPUEmbedding embedding(
      {{"user", FeatureConfig{.table = users}}}, optim::SGD{});
  torch::nn::Linear tower(2, 1);
  torch::optim::SGD optimizer(tower->parameters(), 0.1);
  const auto loss_of = [](const at::Tensor& scores, const at::Tensor& labels) {
    return (scores - labels).square().sum();
  };
  // snippet: prefetch
  const auto features_of = [](const Batch& batch) {
    return Features{{"user", batch.users}};
  };
  for (auto& [batch, activations] : prefetch(batches, embedding, features_of)) {
    optimizer.zero_grad();
    loss_of(tower->forward(activations["user"]), batch.labels).backward();
    optimizer.step();
  }
  // end snippet
  EXPECT_EQ(embedding->iterations(), 3);
}

TEST_F(LayersReferenceTest, PartialTPUEmbedding) {
  const TablePtr users =
      make_table({.name = "users", .vocabulary_size = 20'000, .dim = 2});
  const TablePtr weekdays =
      make_table({.name = "weekdays", .vocabulary_size = 7, .dim = 2});
  // snippet: PartialTPUEmbeddingImpl
  PartialTPUEmbedding embedding(PartialTPUEmbeddingOptions{
      .features =
          {{"user", FeatureConfig{.table = users}},  // 20,000 rows
           {"weekday", FeatureConfig{.table = weekdays}}},
      .optimizer = optim::Adagrad{.learning_rate = 0.1}});
  // Trains the table of weekdays.
  torch::optim::Adam optimizer(embedding->parameters(), 1e-3);
  // end snippet
  const Features batch{{"user", user_ids}, {"weekday", torch::tensor({1, 2})}};
  const auto before = embedding->forward(batch);
  (before["user"].sum() + before["weekday"].sum()).backward();
  optimizer.step();
  const auto after = embedding->forward(batch);
  expect_close(after["user"], before["user"] - 0.1 / std::sqrt(0.1 + 1));
  expect_close(after["weekday"], before["weekday"] - 1e-3);
}

TEST_F(LayersReferenceTest, EmbeddingEngineModule) {
  torch::nn::Sequential model(torch::nn::Linear(2, 1));
  // snippet: EmbeddingEngineModuleImpl
  EmbeddingEngineModule engine(EmbeddingEngineOptions{
      .features = {{"user", FeatureConfig{.table = users}}},
      .optimizer = optim::Adagrad{.learning_rate = 0.05}});
  model->register_module("engine", engine);  // is saved with the model
  engine->enqueue({{"user", user_ids}});
  const auto activations = engine->dequeue();
  // end snippet
  EXPECT_EQ(activations["user"].sizes(), (at::IntArrayRef{2, 2}));
  EXPECT_EQ(model->parameters().size(), 2);
  save_to_file(model, "model.pt");
  engine->update_embedding_table("users", torch::zeros({10, 2}));
  load_from_file(model, "model.pt");
  expect_close(
      engine->embedding_lookup({{"user", user_ids}})["user"],
      activations["user"]);
}

TEST_F(LayersReferenceTest, TableModule) {
  TPUEmbedding layer(
      {{"user", FeatureConfig{.table = users}}}, optim::Adagrad{});
  EmbeddingEngineModule engine(EmbeddingEngineOptions{
      .features = {{"user", FeatureConfig{.table = users}}},
      .optimizer = optim::Adagrad{}});
  const auto model = std::make_shared<torch::nn::Module>("model");
  model->register_module("dense", torch::nn::Linear(2, 1));
  model->register_module("layer", layer);
  model->register_module("engine", engine);
  testing::internal::CaptureStdout();
  // snippet: TableModule
  model->apply([](torch::nn::Module& part) {
    if (const TableModule* tables = TableModule::of(part)) {
      std::cout << tables->summary();
    }
  });
  // end snippet
  EXPECT_EQ(
      testing::internal::GetCapturedStdout(),
      layer->summary() + engine->summary());
  EXPECT_EQ(TableModule::of(*model), nullptr);
  const TPUEmbedding host(TPUEmbeddingOptions{
      .features = {{"user", FeatureConfig{.table = users}}},
      .strategy = Strategy::host()});
  EXPECT_EQ(host->strategy(), Strategy::host());
  for (TableModule* tables :
       {TableModule::of(*layer), TableModule::of(*engine)}) {
    EXPECT_EQ(tables->feature_configs()["user"].table, users);
    EXPECT_EQ(tables->strategy(), Strategy::fused());
    tables->update_embedding_table("users", torch::full({10, 2}, 0.5));
    expect_close(tables->read_rows("users", 2, 4), torch::full({2, 2}, 0.5));
    expect_close(
        tables->embedding_tables()["users"], torch::full({10, 2}, 0.5));
  }
}

TEST_F(LayersReferenceTest, EmbedReduce) {
  const auto ids = torch::tensor({{1, 2, 3}, {4, 4, 4}});
  const auto weights = torch::tensor({{1.0F, 0.0F, 0.0F}, {1.0F, 1.0F, 1.0F}});
  // snippet: EmbedReduceImpl
  EmbedReduce tags(EmbedReduceOptions{
      .input_dim = 1000, .output_dim = 16, .combiner = Combiner::kSqrtn});
  const auto plain = tags->forward(ids);  // [batch, 16] from [batch, n]
  const auto weighted = tags->forward(ids, weights);  // weights [batch, n]
  // end snippet
  const at::Tensor table = tags->parameters().front();
  expect_close(weighted[0], table[1]);
  expect_close(plain[1], table[4] * std::sqrt(3.0));
}

// Layers of dense inputs.

TEST_F(LayersReferenceTest, Layer) {
  // snippet: Layer
  Cross cross(CrossOptions{.projection_dim = 16});
  cross->build(PartialShape{std::nullopt, 64});  // or by the first forward()
  const Json json = to_json(cross);
  const Cross same = from_json<Cross>(json);  // without the weights
  // end snippet
  EXPECT_EQ(same->options(), cross->options());
  EXPECT_EQ(same->input_shapes(), cross->input_shapes());
  EXPECT_EQ(json["class_name"], "Cross");
}

TEST_F(LayersReferenceTest, FromJson) {
  const optim::LearningRate warm_up("warm_up", [] { return 0.25; });
  options.optimizer = optim::SGD{.learning_rate = warm_up};
  const Json json = to_json(TPUEmbedding(options));
  // snippet: FromJson
  const auto embedding = from_json<TPUEmbedding>(
      json,
      {.callables = {.learning_rates = {{"warm_up", warm_up}}},
       .strategy = Strategy::host()});
  // end snippet
  EXPECT_FALSE(embedding->options().strategy.is_fused());
  EXPECT_EQ(embedding->options().optimizer, options.optimizer);
}

TEST_F(LayersReferenceTest, RegisterModels) {
  const std::string text = R"({"class_name": "Retrieval", "config": {}})";
  // snippet: register_models
  register_models();
  const auto model = layer_from_json(parse_json(text));
  // end snippet
  EXPECT_EQ(to_json(*model)["class_name"], "Retrieval");
}

TEST_F(LayersReferenceTest, Concatenate) {
  // snippet: ConcatenateImpl
  torch::nn::Sequential model(
      TPUEmbedding(options),  // three features of dim 2
      Concatenate(),
      torch::nn::Linear(6, 1));
  const auto scores = model->forward(features);
  // end snippet
  EXPECT_EQ(scores.sizes(), (at::IntArrayRef{2, 1}));
}

TEST_F(LayersReferenceTest, Cross) {
  const auto x0 = torch::rand({4, 64});
  // snippet: CrossImpl
  Cross first(CrossOptions{.projection_dim = 16});
  Cross second(CrossOptions{.projection_dim = 16});
  auto x = first->forward(x0);  // x is x0
  x = second->forward(x0, x);
  // end snippet
  const at::Tensor x1 = first->forward(x0, x0);
  EXPECT_EQ(x.sizes(), x0.sizes());
  expect_close(x, second->forward(x0, x1));
}

TEST_F(LayersReferenceTest, MultiLayerDCN) {
  const auto x0 = torch::rand({4, 64});
  // snippet: MultiLayerDCNImpl
  MultiLayerDCN dcn(
      MultiLayerDCNOptions{.projection_dim = 16, .num_layers = 2});
  const auto crossed = dcn->forward(x0);  // the shape of x0
  // end snippet
  EXPECT_EQ(crossed.sizes(), x0.sizes());
  EXPECT_EQ(dcn->parameters().size(), 2 * 3);
}

TEST_F(LayersReferenceTest, MLP) {
  const auto dense = torch::rand({4, 13});
  const auto dots = torch::rand({4, 6});
  // snippet: MLPImpl
  MLP tower(MLPOptions{.units = {64, 1}});
  const auto logits = tower->forward({{"dense", dense}, {"dots", dots}});
  // end snippet
  const at::Tensor joined = torch::cat({dense, dots}, 1);
  EXPECT_EQ(logits.sizes(), (at::IntArrayRef{4, 1}));
  expect_close(logits, tower->forward(joined));
}

TEST_F(LayersReferenceTest, Sequential) {
  options.features = {
      {"user", FeatureConfig{.table = users}},
      {"movie", FeatureConfig{.table = movies}}};
  const TPUEmbedding embedding(options);
  // snippet: SequentialImpl
  Sequential model(embedding, MLP({.units = {8, 1}}));
  const auto logits = model->forward(
      {{"user", torch::tensor({1, 2})}, {"movie", torch::tensor({3, 4})}});
  // end snippet
  EXPECT_EQ(logits.sizes(), (at::IntArrayRef{2, 1}));
  const Features same{
      {"user", torch::tensor({1, 2})}, {"movie", torch::tensor({3, 4})}};
  EXPECT_TRUE(at::equal(model->forward(same), logits));
  const auto copy = std::dynamic_pointer_cast<SequentialImpl>(model->clone());
  EXPECT_TRUE(at::equal(copy->forward(same), logits));
  EXPECT_EQ(copy->named_parameters().keys(), model->named_parameters().keys());
  const Json json = to_json(model);
  EXPECT_EQ(to_json(from_json<Sequential>(json)), json);
  EXPECT_EQ(to_json(from_json<torch::nn::Sequential>(json)), json);
}

TEST_F(LayersReferenceTest, DotInteraction) {
  // snippet: DotInteractionImpl
  torch::nn::Sequential model(
      TPUEmbedding(options),  // three features: 3 pairs, and each with itself
      DotInteraction(DotInteractionOptions{.self_interaction = true}),
      torch::nn::Linear(6, 1));
  const auto scores = model->forward(features);
  // end snippet
  EXPECT_EQ(scores.sizes(), (at::IntArrayRef{2, 1}));
}

// Retrieval.

TEST_F(LayersReferenceTest, Retrieval) {
  const auto users = torch::rand({3, 8}).requires_grad_();
  const auto movies = torch::rand({3, 8}).requires_grad_();
  const auto ids = torch::tensor({5, 6, 5});
  const auto share_of_ids = torch::tensor({0.02F, 0.01F, 0.02F});
  // snippet: RetrievalImpl
  Retrieval retrieval(RetrievalOptions{.remove_accidental_hits = true});
  const auto loss = retrieval->forward(
      users,
      movies,
      {.candidate_ids = ids, .candidate_sampling_probability = share_of_ids});
  loss.backward();
  // end snippet
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_TRUE(movies.grad().abs().sum().item<float>() > 0);
  // Movie 2 has the id of movie 0, so it is no negative of user 0.
  const auto scores = at::matmul(users, movies.t()) - share_of_ids.log();
  const auto own = scores.diagonal();
  const auto hidden =
      torch::tensor({{0, 0, 1}, {0, 0, 0}, {1, 0, 0}}).to(at::kBool);
  const auto visible =
      scores.masked_fill(hidden, -std::numeric_limits<float>::infinity());
  expect_close(loss, (visible.logsumexp(1) - own).sum());
}

TEST_F(LayersReferenceTest, SamplingProbability) {
  const auto users = torch::rand({3, 8});
  const auto movies = torch::rand({3, 8});
  const auto ids = torch::tensor({5, 5, 6});
  Retrieval retrieval;
  // snippet: SamplingProbabilityImpl
  SamplingProbability estimate(
      SamplingProbabilityOptions{.num_buckets = 1 << 16});
  RetrievalBatch batch{.candidate_ids = ids};
  batch.candidate_sampling_probability = estimate->forward(ids);
  const auto loss = retrieval->forward(users, movies, batch);
  // end snippet
  // Gaps: 1 and 1 for id 5, 3 for id 6.
  expect_close(
      batch.candidate_sampling_probability,
      test::floats({1.0F, 1.0F, 1 / 3.0F}));
  EXPECT_TRUE(at::isfinite(loss).item<bool>());
}

TEST_F(LayersReferenceTest, TopKIndex) {
  const auto movie_vectors = torch::rand({50, 8});
  const auto movie_ids = torch::arange(50) + 100;
  const auto user_vectors = torch::rand({2, 8});
  const auto [scores, order] =
      at::matmul(user_vectors, movie_vectors.t()).topk(11);
  const RaggedFeature seen_movies{
      .values = movie_ids.index_select(0, order[1].narrow(0, 0, 1)),
      .row_splits = torch::tensor({0, 0, 1})};
  // snippet: TopKIndex
  const auto index = make_exact_index(movie_vectors, movie_ids);
  const TopK found = index->search(user_vectors, 10, seen_movies);
  // found.ids: [users, 10], without the movies that a user has seen
  // end snippet
  expect_close(found.ids[0], order[0].narrow(0, 0, 10) + 100);
  expect_close(found.ids[1], order[1].narrow(0, 1, 10) + 100);
  expect_close(found.scores[1], scores[1].narrow(0, 1, 10));
}

TEST_F(LayersReferenceTest, Recommender) {
  using Texts = std::vector<std::string>;
  data::Columns films;
  films.add("film", {.values = Texts{"Heat", "Ran", "Alien", "Amadeus"}});
  films.add("genre", {.values = Texts{"crime", "drama", "horror", "drama"}});
  films.add("year", {.values = torch::tensor({1995, 1985, 1979, 1984})});
  const data::FeaturePipeline pipeline(
      {{.name = "user",
        .columns = {"user"},
        .transform =
            data::transforms::Vocabulary{.values = Texts{"ann", "bob"}}},
       {.name = "film",
        .columns = {"film"},
        .transform = data::transforms::Vocabulary{
            .values = Texts{"Heat", "Ran", "Alien", "Amadeus"}}}});
  TPUEmbedding model(
      TPUEmbeddingOptions{.features = pipeline.make_features({.dim = 4})});
  const auto first = pipeline.num_reserved_ids("film");
  const auto film_ids = torch::arange(first, pipeline.vocabulary_size("film"));
  const auto clicks = torch::tensor({9, 5, 7, 2});
  // ann has seen Ran.
  const auto seen = [&](const torch::Tensor& ids) {
    return RaggedFeature::from_lengths(
        torch::tensor({first + 1}),
        torch::cat({torch::ones({1}), torch::zeros({ids.size(0) - 1})})
            .to(torch::kLong));
  };
  // snippet: Recommender
  const auto vectors = [&] {
    return model->forward_partial({{"film", film_ids}})["film"];
  };
  const Recommender recommender(
      model,
      {.items =
           [&] {
             return RecommenderItems{
                 .vectors = vectors(), .ids = film_ids, .popularity = clicks};
           },
       .query =
           [&](const data::PipelineBatch& batch) {
             return model->forward_partial(
                 {{"user", batch.features["user"]}})["user"];
           },
       .pipeline = pipeline,
       .item = "film",
       .seen = seen,
       .fold_in =
           [&](const RaggedFeature& rows) {
             return FoldIn(vectors(), {.regularization = 1.0}).solve(rows);
           },
       .attributes = films});

  // A known user, a new user who likes two films, and one of whom nothing is known.
  data::Columns users;
  users.add("user", {.values = Texts{"ann", "", ""}});
  users.add(
      "film",
      {.values = Texts{"Ran", "Heat"},
       .row_splits = torch::tensor({0, 0, 2, 2})});
  const Recommendations found = recommender.recommend(
      users,
      {.k = 2,
       .exclude_seen = true,
       .where = "genre = 'drama' or year < 1980",
       .diversity = Diversity{.column = "genre", .max_per_value = 1}});
  for (const std::string& film : found.texts[0]) {
    std::cout << film << "\n";  // the films for the first user, best first
  }
  // end snippet
  EXPECT_EQ(found.passed, 3);
  EXPECT_EQ(found.texts[0].size(), 2U);
  EXPECT_EQ(found.texts[1].size(), 2U);  // neither Ran nor Heat
  EXPECT_EQ(found.from[1], RecommendedFrom::kFoldIn);
  EXPECT_EQ(found.texts[2], (Texts{"Alien", "Ran"}));
  EXPECT_EQ(found.from[2], RecommendedFrom::kPopularity);
}

TEST_F(LayersReferenceTest, FaissIndex) {
  const auto vectors = torch::rand({2000, 8});
  const auto ids = torch::arange(2000) + 100;
  const auto queries = torch::rand({3, 8});
  const auto search = [&] {
    // snippet: make_faiss_index
    const auto index = make_faiss_index(
        vectors, ids, {.factory = "IVF1024,Flat", .nprobe = 32});
    // end snippet
    return index->search(queries, 2);
  };
  if (!has_faiss()) {
    EXPECT_THROW(search(), c10::NotImplementedError);
    return;
  }
  const TopK found = search();
  const auto rows = vectors.index_select(0, found.ids.flatten() - 100);
  expect_close(
      found.scores,
      at::matmul(rows.view({3, 2, 8}), queries.unsqueeze(2)).squeeze(2));
}

// Training.

TEST_F(LayersReferenceTest, Combined) {
  const std::vector<Features> micro_batches(2, features);
  options.apply = Apply::kOnStep;
  TPUEmbedding embedding(options);
  torch::nn::Sequential model(
      embedding, Concatenate(), torch::nn::Linear(6, 1));
  const auto loss_of = [&](const Features& batch) {
    return model->forward(batch).sum();
  };
  const at::Tensor before = rows_of(embedding, "users");
  {
    // snippet: Combined
    Combined optimizer(
        torch::optim::Adam(model->parameters(), 1e-3), {embedding});
    optimizer.zero_grad();
    for (const Features& micro_batch : micro_batches) {
      loss_of(micro_batch).backward();
    }
    optimizer.clip_grad_norm_(1.0);
    optimizer.step();  // dense weights and tables
    // end snippet
  }
  EXPECT_EQ(embedding->iterations(), 1);
  EXPECT_FALSE(at::equal(rows_of(embedding, "users"), before));
  // snippet: CombinedOptions
  Combined optimizer(
      torch::optim::Adam(model->parameters(), 1e-3),
      {embedding},
      {.accumulation = Accumulation::kMean, .non_finite = NonFinite::kSkip});
  // end snippet
  (loss_of(features) * std::numeric_limits<float>::infinity()).backward();
  optimizer.step();
  EXPECT_EQ(optimizer.skipped_steps(), 1);
}

TEST_F(LayersReferenceTest, NoTableUpdateGuard) {
  TPUEmbedding embedding(options);
  torch::nn::Sequential model(
      embedding, Concatenate(), torch::nn::Linear(6, 1));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto loss_of = [](const at::Tensor& scores) { return scores.sum(); };
  const at::Tensor before = rows_of(embedding, "users");
  // snippet: NoTableUpdateGuard
  const auto scores = model->forward(features);
  {
    const NoTableUpdateGuard guard(model);
    loss_of(scores).backward();  // no table changes
  }
  optimizer.step();  // the dense weights change
  // end snippet
  expect_close(rows_of(embedding, "users"), before, 0.0, 0.0);
  EXPECT_FALSE(at::equal(model->forward(features), scores));
}

// Files.

TEST_F(LayersReferenceTest, ExportOptions) {
  TPUEmbedding embedding(options);
  // snippet: ExportOptions
  export_torchscript(
      embedding, "users.pt", {.features = {"user"}, .dtype = at::kChar});
  // end snippet
  c10::Dict<std::string, c10::List<at::Tensor>> inputs;
  inputs.insert("user", c10::List<at::Tensor>({user_ids}));
  auto exported = torch::jit::load("users.pt");
  expect_close(
      exported({inputs}).toGenericDict().at("user").toTensor(),
      embedding->forward(features)["user"],
      0.0,
      1e-2);  // int8
}

TEST_F(LayersReferenceTest, ExportExample) {
  const auto prices = torch::tensor({{9.5F}, {2.5F}});
  // snippet: ExportExample
  PricedRanker ranker(options);  // forward(features, prices)
  export_torchscript(
      ranker, "ranker.pt", {.features = features, .inputs = {prices}});
  // end snippet
  c10::Dict<std::string, c10::List<at::Tensor>> inputs;
  for (const auto& [path, feature] : features) {
    inputs.insert(path, c10::List<at::Tensor>({std::get<at::Tensor>(feature)}));
  }
  auto exported = torch::jit::load("ranker.pt");
  expect_close(
      exported({inputs, prices}).toTensor(), ranker->forward(features, prices));
}

TEST_F(LayersReferenceTest, Pt2Program) {
  const auto movie_ids = torch::tensor({1, 2});
  const auto director_ids = torch::tensor({15, 16});
  const auto prices = torch::tensor({{9.5F}, {2.5F}});
  PricedRanker ranker(options);
  const ExportExample example{.features = features, .inputs = {prices}};
  // snippet: Pt2Signature
  const Pt2Signature signature = export_pt2(ranker, "ranker.pt2", example);
  std::cout << to_string(signature);
  // end snippet
  // snippet: Pt2Program
  const Pt2Program program("ranker.pt2");
  const at::Tensor scores =
      program.run({user_ids, movie_ids, director_ids, prices})[0];
  // end snippet
  expect_close(scores, ranker->forward(features, prices));
}

TEST_F(LayersReferenceTest, LoadStateDict) {
  const auto prices = torch::tensor({{9.5F}, {2.5F}});
  PricedRanker source(options);
  PricedRanker ranker(options);
  export_pt2(source, "trained.pt2", {.features = features, .inputs = {prices}});
  save_safetensors(
      {.tensors = Pt2Program("trained.pt2").state_dict()},
      "trained.safetensors");
  // snippet: load_state_dict
  load_state_dict(*ranker, load_safetensors("trained.safetensors"));
  // end snippet
  expect_close(
      ranker->forward(features, prices), source->forward(features, prices));
}

TEST_F(LayersReferenceTest, NamedTensors) {
  const auto users = torch::rand({10, 2});
  // snippet: NamedTensors
  save_safetensors({.tensors = {{"users", users}}}, "tables.safetensors");
  const NamedTensors tables = load_safetensors("tables.safetensors");
  const at::Tensor loaded = tables["users"];
  // end snippet
  EXPECT_TRUE(at::equal(loaded, users));
}

TEST_F(LayersReferenceTest, Callables) {
  const auto rate = [] { return 0.25; };
  options.optimizer =
      optim::SGD{.learning_rate = optim::LearningRate("warm_up", rate)};
  TPUEmbedding saved(options);
  saved->save_checkpoint("run/checkpoints");
  // snippet: Callables
  const Callables callables{
      .learning_rates = {{"warm_up", optim::LearningRate("warm_up", rate)}}};
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features = saved_features("run/checkpoints", callables)});
  embedding->load_checkpoint("run/checkpoints");
  // end snippet
  expect_close(rows_of(embedding, "users"), rows_of(saved, "users"));
  const auto activations = embedding->forward(features);
  activations["user"].sum().backward();
  expect_close(
      embedding->forward(features)["user"], activations["user"] - 0.25);
}

}  // namespace tessera::reference_layers_test
