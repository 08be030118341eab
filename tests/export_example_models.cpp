// SPDX-License-Identifier: Apache-2.0
// Writes the models of examples/, and one with the other layers, as .pt2 files.
#include "examples/dlrm/click_model.h"
#include "examples/movielens/rater.h"
#include "tests/export_samples.h"
#include "tests/test_files.h"

#include <tessera/tessera.h>

#include <fmt/format.h>

namespace tessera::test {

namespace {

constexpr int64_t kColumns = 5;
constexpr int64_t kSampleRows = 100;

void write_click_model(Samples& samples, const std::string& interaction) {
  Nest<FeatureConfig>::Map features;
  for (int64_t i = 0; i < kColumns; ++i) {
    const std::string name = fmt::format("column_{}", i);
    features.emplace_back(
        name,
        FeatureConfig{
            .table = make_table(
                {.name = name, .vocabulary_size = kSampleRows, .dim = 8})});
  }
  ClickModel model(ClickModelOptions{
      .features = Nest<FeatureConfig>::map(std::move(features)),
      .optimizer = optim::Adagrad{},
      .interaction = interaction,
      .bottom_units = {16},
      .top_units = {16, 8},
      .projection_dim = 4});
  write_pt2(samples, interaction, model, [](int64_t size) {
    Features::Map ids;
    for (int64_t i = 0; i < kColumns; ++i) {
      ids.emplace_back(
          fmt::format("column_{}", i),
          torch::randint(kSampleRows, {size}, torch::kLong));
    }
    return ExportExample{
        .features = Features::map(std::move(ids)),
        .inputs = {torch::rand({size, 13})}};
  });
}

void write_rater(Samples& samples) {
  const RatingData data(load_movielens(test_file("movielens_tiny")), 1);
  Rater model(data, Options{});
  write_pt2(samples, "movielens", model, [&](int64_t size) {
    const auto count =
        std::min<int64_t>(size, static_cast<int64_t>(data.train().size()));
    const RatingBatch batch =
        data.batch(Ratings(data.train().begin(), data.train().begin() + count));
    return ExportExample{.features = batch.features, .weights = batch.weights};
  });
}

// The layers that the examples do not use, and a table with rounded lookups.
struct OtherLayersImpl : torch::nn::Module {
  OtherLayersImpl() {
    const auto small =
        make_table({.name = "small", .vocabulary_size = 20, .dim = 4});
    const auto rounded = make_table(
        {.name = "rounded",
         .vocabulary_size = 200'000,
         .dim = 4,
         .dtype = at::kBFloat16,
         .quantization =
             QuantizationConfig{.num_buckets = 9, .lower = -1, .upper = 1}});
    embedding = register_module(
        "embedding",
        PartialTPUEmbedding(PartialTPUEmbeddingOptions{
            .features =
                {{"weekday", FeatureConfig{.table = small}},
                 {"word", FeatureConfig{.table = rounded}}},
            .optimizer = optim::Adagrad{}}));
    engine = register_module(
        "engine",
        EmbeddingEngineModule(EmbeddingEngineOptions{
            .features =
                {{"item",
                  FeatureConfig{
                      .table = make_table(
                          {.name = "items",
                           .vocabulary_size = 50,
                           .dim = 4,
                           .combiner = Combiner::kSqrtn})}}},
            .optimizer = optim::Adagrad{}}));
    cross = register_module("cross", Cross(CrossOptions{}));
    mlp = register_module("mlp", MLP(MLPOptions{.units = {8, 1}}));
  }
  torch::Tensor forward(const Features& features) {
    const auto both = embedding->forward(
        {{"weekday", features["weekday"]}, {"word", features["word"]}});
    const auto items = engine->embedding_lookup({{"item", features["item"]}});
    const torch::Tensor joined =
        torch::cat({both["weekday"], both["word"], items["item"]}, 1);
    return mlp->forward(cross->forward(joined)).squeeze(1);
  }

  PartialTPUEmbedding embedding{nullptr};
  EmbeddingEngineModule engine{nullptr};
  Cross cross{nullptr};
  MLP mlp{nullptr};
};
TORCH_MODULE(OtherLayers);

void write_other_layers(Samples& samples) {
  OtherLayers model;
  write_pt2(samples, "other_layers", model, [](int64_t size) {
    const torch::Tensor lengths = torch::randint(4, {size}, torch::kLong);
    const auto nnz = lengths.sum().item<int64_t>();
    return ExportExample{
        .features = {
            {"weekday", torch::randint(20, {size}, torch::kLong)},
            {"word",
             RaggedFeature::from_lengths(
                 torch::randint(200'000, {nnz}, torch::kLong), lengths)},
            {"item",
             RaggedFeature::from_lengths(
                 torch::randint(50, {nnz}, torch::kLong), lengths)}}};
  });
}

}  // namespace

void write_example_models(Samples& samples) {
  write_click_model(samples, "dlrm");
  write_click_model(samples, "dcn");
  write_rater(samples);
  write_other_layers(samples);
}

}  // namespace tessera::test
