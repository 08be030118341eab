// SPDX-License-Identifier: Apache-2.0
// The code of the pages docs/checkpoints.md, export.md, layers.md and
// training.md, which check_docs.cmake compares with them.
#include <tessera/tessera.h>
#include <torch/csrc/jit/serialization/import.h>

#include "tests/docs/pages_fixture.h"
#include "tests/docs/ranker.h"
#include "tests/test_util.h"

namespace tessera::readme_test {

class ReadmeTest : public test::PagesTest {};

Features two_examples() {
  return {
      {"user", at::tensor({3, 99}, at::kLong)},
      {"movie", at::tensor({1, 49}, at::kLong)},
      {"history",
       RaggedFeature{
           .values = at::tensor({7, 8, 9}, at::kLong),
           .row_splits = at::tensor({0, 1, 3}, at::kLong)}}};
}

TEST_F(ReadmeTest, AModelLearnsAndIsSaved) {
  const std::vector<std::pair<Features, at::Tensor>> batches(
      50, {two_examples(), at::tensor({1.0F, 0.0F})});
  const auto users = tessera::make_table(
      {.name = "users", .vocabulary_size = 1000, .dim = 16});
  const auto movies = tessera::make_table(
      {.name = "movies", .vocabulary_size = 500, .dim = 16});
  torch::nn::Sequential model(
      tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
          .features =
              {{"user", tessera::FeatureConfig{.table = users}},
               {"movie", tessera::FeatureConfig{.table = movies}},
               {"history", tessera::FeatureConfig{.table = movies}}},
          .optimizer =
              tessera::optim::Adagrad{
                  .learning_rate = 0.1, .initial_accumulator_value = 1e-6}}),
      tessera::Concatenate(),
      torch::nn::Linear(48, 1));  // 3 features of 16 numbers
  // Gets the dense weights and the virtual variable, but no tables.
  torch::optim::Adam optimizer(model->parameters(), 1e-3);

  for (const auto& [features, labels] : batches) {
    optimizer.zero_grad();
    const auto logits = model->forward(features).squeeze(1);
    const auto loss = torch::binary_cross_entropy_with_logits(logits, labels);
    loss.backward();  // updates the rows of this batch in both tables
    optimizer.step();  // updates the dense weights
  }
  tessera::save_to_file(model, "ranker.pt");
  const at::Tensor logits = model->forward(two_examples()).squeeze(1);
  EXPECT_GT(logits[0].item<float>(), 0.0F);
  EXPECT_LT(logits[1].item<float>(), 0.0F);
  model->forward(two_examples()).sum().backward();
  tessera::load_from_file(model, "ranker.pt");
  EXPECT_TRUE(at::equal(model->forward(two_examples()).squeeze(1), logits));
}

TEST_F(ReadmeTest, PrefetchTrainsOnEveryBatch) {
  test::Ranker model;
  auto& embedding = model->embedding;
  auto& tower = model->tower;
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  const std::vector<std::pair<Features, at::Tensor>> batches(
      5, {two_examples(), at::tensor({1.0F, 0.0F})});
  // snippet: prefetch
  const auto features_of = [](const auto& batch) { return batch.first; };
  for (auto& [batch, activations] :
       tessera::prefetch(batches, embedding, features_of)) {
    optimizer.zero_grad();
    const auto logits = tower->forward(activations).squeeze(1);
    torch::binary_cross_entropy_with_logits(logits, batch.second).backward();
    optimizer.step();
  }
  // end snippet
  EXPECT_EQ(embedding->iterations(), 5);
}

TEST_F(ReadmeTest, ARankerScoresAllItemsForOneUser) {
  test::Ranker model;
  // snippet: score_all
  model->eval();
  const torch::NoGradGuard no_grad;
  const auto scores = model->forward(
      {{"user", torch::tensor({42})},
       {"movie", torch::arange(50)},  // all of them
       {"history",
        tessera::RaggedFeature::from_lengths(
            torch::tensor({7, 8, 9}), torch::tensor({3}))}});
  const auto [best_scores, best_movies] = scores.topk(10);
  // end snippet
  EXPECT_TRUE(at::equal(scores.index_select(0, best_movies), best_scores));
  const at::Tensor alone = model->forward(
      {{"user", at::tensor({42}, at::kLong)},
       {"movie", best_movies.narrow(0, 0, 1)},
       {"history",
        RaggedFeature{
            .values = at::tensor({7, 8, 9}, at::kLong),
            .row_splits = at::tensor({0, 3}, at::kLong)}}});
  test::expect_close(alone, best_scores.narrow(0, 0, 1));
}

TEST_F(ReadmeTest, AnIndexFindsItemsForOneUser) {
  test::Ranker model;
  auto& embedding = model->embedding;
  // snippet: find_items
  // Without gradients, forward() takes some of the features.
  const torch::NoGradGuard no_grad;
  const auto movies =
      embedding->forward({{"movie", torch::arange(50)}})["movie"];
  const auto index = tessera::make_exact_index(movies);  // for all users
  const auto user = embedding->forward({{"user", torch::tensor({42})}})["user"];
  const tessera::TopK found = index->search(user, 10);
  // found.ids and found.scores: [1, 10], best first
  // end snippet
  const auto [scores, ids] = at::matmul(user, movies.t()).topk(10);
  EXPECT_TRUE(at::equal(found.ids, ids));
  test::expect_close(found.scores, scores);
}

TEST_F(ReadmeTest, ACheckpointRestoresTablesAndTower) {
  test::Ranker model;
  auto& embedding = model->embedding;
  auto& tower = model->tower;
  const at::Tensor before = model->forward(two_examples());
  const auto save = [&] {
    // snippet: checkpoints
    embedding->save_checkpoint(
        "run/checkpoints",
        {.keep_last = 3,
         .full_every = 10,  // the others: only rows touched since the last
         .extra = [&](auto& archive) { tower->save(archive); }});
    // end snippet
  };
  const auto load = [&] {
    // clang-format off
    // snippet: checkpoints
    embedding->load_checkpoint(
        "run/checkpoints", {.extra = [&](auto& archive) { tower->load(archive); }});
    // end snippet
    // clang-format on
  };
  save();
  EXPECT_EQ(list_checkpoints("run/checkpoints").size(), 1);
  model->forward(two_examples()).sum().backward();
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& weights : tower->parameters()) {
      weights.zero_();
    }
  }
  EXPECT_FALSE(at::equal(model->forward(two_examples()), before));
  load();
  EXPECT_TRUE(at::equal(model->forward(two_examples()), before));
}

TEST_F(ReadmeTest, LoadsAndSavesTablesAsFilesOfPython) {
  test::Ranker model;
  auto& layer = model->embedding;
  const at::Tensor vectors = at::rand({100, 8});
  save_npy(vectors, "users.npy");
  // snippet: tables_in_files
  // numpy.save("users.npy", vectors) wrote this one.
  layer->update_embedding_table("users", tessera::load_npy("users.npy"));

  tessera::NamedTensors tables{.metadata = {{"trained_on", "MovieLens"}}};
  for (const auto& table : layer->embedding_tables()) {
    tables.tensors.emplace_back(table.name, table.parameters);
  }
  tessera::save_safetensors(tables, "tables.safetensors");
  // end snippet
  const NamedTensors loaded = load_safetensors("tables.safetensors");
  EXPECT_TRUE(at::equal(loaded["users"], vectors));
  EXPECT_TRUE(at::equal(loaded["movies"], layer->embedding_tables()["movies"]));
  EXPECT_EQ(loaded.metadata.at("trained_on"), "MovieLens");
}

// In `./run test-python`, without_tessera.py reads these files.
TEST_F(ReadmeTest, AnExportedModelNeedsNoTessera) {
  test::Ranker model;
  const Features batch = two_examples();
  // snippet: export
  tessera::export_torchscript(model, "ranker.pt", {.features = batch});
  tessera::export_torchscript(
      model, "small_ranker.pt", {.features = batch}, {.dtype = at::kChar});
  tessera::export_torchscript(
      model->embedding,
      "embedding.pt",
      {.features = {"user"}, .dtype = at::kChar});
  // end snippet
  const auto bags = [](std::initializer_list<at::Tensor> tensors) {
    return c10::List<at::Tensor>(tensors);
  };
  c10::Dict<std::string, c10::List<at::Tensor>> inputs;
  inputs.insert("user", bags({at::tensor({3, 99}, at::kLong)}));
  auto embedding = torch::jit::load("embedding.pt");
  const auto activations = embedding({inputs}).toGenericDict();
  test::expect_close(
      activations.at("user").toTensor(),
      model->embedding->forward(batch)["user"],
      0.0,
      1e-2);  // int8
  inputs.insert("movie", bags({at::tensor({1, 49}, at::kLong)}));
  inputs.insert(
      "history",
      bags(
          {at::tensor({7, 8, 9}, at::kLong),
           at::tensor({0, 1, 3}, at::kLong)}));
  auto ranker = torch::jit::load("ranker.pt");
  test::expect_close(ranker({inputs}).toTensor(), model->forward(batch));
  auto small_ranker = torch::jit::load("small_ranker.pt");
  test::expect_close(
      small_ranker({inputs}).toTensor(), model->forward(batch), 0.0, 1e-2);
}

}  // namespace tessera::readme_test
