// SPDX-License-Identifier: Apache-2.0
// Writes exported models, batches for them, and the results that Tessera gives:
//   export_samples FOLDER  ->  NAME.pt, NAME.cases, NAME.pt2, NAME.pt2cases
// The cases are written by torch::pickle_save. run_torchscript.cpp, test_torchscript.py and
// test_pt2.py read these files without Tessera.
#include <tessera/export/export_torchscript.h>
#include <tessera/layers/dense/concatenate.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "tests/export_samples.h"

namespace {

using namespace tessera;
using namespace tessera::test;

constexpr const char* kOddName = "quote\" \n \xc3\xa9";

TPUEmbedding make_embedding() {
  const auto users =
      make_table({.name = "class", .vocabulary_size = 1000, .dim = 8});
  const auto items = make_table(
      {.name = "items",
       .vocabulary_size = 500,
       .dim = 5,
       .combiner = Combiner::kSqrtn});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features =
          {{"user", FeatureConfig{.table = users}},
           {kOddName,
            FeatureConfig{.table = users, .out_of_range = OutOfRange::kZero}},
           {"history",
            Nest<FeatureConfig>::list(
                {FeatureConfig{.table = items},
                 FeatureConfig{.table = items, .max_sequence_length = 3}})}},
      .optimizer = optim::Adagrad{}});
}

struct Batch {
  Features features;
  Weights weights;
  at::Tensor flat_weights;
  at::Tensor prices;
};

Batch make_batch(int64_t size) {
  const auto ragged = [&] {
    const at::Tensor lengths = at::randint(5, {size}, at::kLong);
    const int64_t nnz = lengths.sum().item<int64_t>();
    return RaggedFeature::from_lengths(
        at::randint(500, {nnz}, at::kLong), lengths);
  };
  const RaggedFeature bags = ragged();
  const at::Tensor weights = at::rand({bags.values.numel()});
  return {
      .features =
          {{"user", at::randint(1000, {size}, at::kInt)},
           {kOddName, at::randint(1100, {size, 2}, at::kLong)},
           {"history", Features::list({bags, ragged()})}},
      .weights =
          {{"user", std::nullopt},
           {kOddName, std::nullopt},
           {"history",
            Weights::list({std::optional<Feature>(weights), std::nullopt})}},
      .flat_weights = weights,
      .prices = at::rand({size, 2})};
}

// The first argument of the exported forward().
c10::IValue dict_of(const Features& features) {
  c10::Dict<std::string, Parts> dict;
  features.for_each([&](const std::string& path, const Feature& feature) {
    if (const auto* dense = std::get_if<at::Tensor>(&feature)) {
      dict.insert(path, Parts({*dense}));
    } else {
      const auto& ragged = std::get<RaggedFeature>(feature);
      dict.insert(path, Parts({ragged.values, ragged.row_splits}));
    }
  });
  return dict;
}

c10::IValue weights_of(const Batch& batch) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("history/0", batch.flat_weights);
  return dict;
}

SparseFeature sparse_ids(int64_t size, int64_t positions) {
  const int64_t nnz = 3 * size;
  const at::Tensor cell = at::randperm(size * positions * 4, at::kLong)
                              .slice(0, 0, size == 0 ? 0 : nnz);
  const at::Tensor row = at::floor_divide(cell, positions * 4);
  const at::Tensor column = cell.remainder(4);
  const at::Tensor position =
      at::floor_divide(cell.remainder(positions * 4), 4);
  return {
      .indices = positions == 1 ? at::stack({row, column}, 1)
                                : at::stack({row, position, column}, 1),
      .values = at::randint(500, {cell.numel()}, at::kLong),
      .dense_shape = positions == 1
          ? at::tensor({size, int64_t{4}}, at::kLong)
          : at::tensor({size, positions, int64_t{4}}, at::kLong)};
}

// Sparse features only, so that the batch size is in the values of an input.
struct SparseFeatures {
  SparseFeatures() {
    const auto items =
        make_table({.name = "items", .vocabulary_size = 500, .dim = 5});
    layer = TPUEmbedding(TPUEmbeddingOptions{
        .features =
            {{"bags", FeatureConfig{.table = items}},
             {"cells",
              FeatureConfig{.table = items, .out_of_range = OutOfRange::kZero}},
             {"sequence",
              FeatureConfig{.table = items, .max_sequence_length = 3}}},
        .optimizer = optim::Adagrad{}});
  }
  static Features batch(int64_t size) {
    return {
        {"bags", sparse_ids(size, 1)},
        {"cells", sparse_ids(size, 2)},
        {"sequence", sparse_ids(size, 1)}};
  }
  TPUEmbedding layer{nullptr};
};

// Features of a key table. Half of the keys in a batch have no row, and some are the
// padding key.
struct KeyFeatures {
  static constexpr int64_t kPadding = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kKeys = 500;

  KeyFeatures() {
    const auto table = make_table(
        {.name = "keys",
         .dim = 6,
         .keys = DynamicKeys{.capacity = kKeys, .padding_key = kPadding}});
    layer = TPUEmbedding(TPUEmbeddingOptions{
        .features =
            {{"bags", FeatureConfig{.table = table}},
             {"id", FeatureConfig{.table = table}},
             {"sequence",
              FeatureConfig{.table = table, .max_sequence_length = 3}}},
        .optimizer = optim::Adagrad{}});
    // The first key is INT64_MAX, and the products are spread over all of int64.
    at::Tensor keys = spread(at::arange(kKeys, at::kLong));
    keys[0] = std::numeric_limits<int64_t>::max();
    layer->update_embedding_table("keys", keys, at::rand({kKeys, 6}));
  }
  static at::Tensor spread(const at::Tensor& numbers) {
    return numbers * 0x51ED270B9F6DC3A5;
  }
  static at::Tensor random_keys(at::IntArrayRef sizes) {
    const at::Tensor numbers = at::randint(2 * kKeys, sizes, at::kLong);
    const at::Tensor keys = spread(numbers).masked_fill(
        numbers.remainder(9) == 0, std::numeric_limits<int64_t>::max());
    return keys.masked_fill(numbers.remainder(7) == 0, kPadding);
  }
  static RaggedFeature ragged(int64_t size) {
    const at::Tensor lengths = at::randint(5, {size}, at::kLong);
    return RaggedFeature::from_lengths(
        random_keys({lengths.sum().item<int64_t>()}), lengths);
  }
  static std::pair<Features, Weights> batch(int64_t size) {
    const RaggedFeature bags = ragged(size);
    const std::optional<Feature> weights = at::rand({bags.values.numel()});
    return {
        {{"bags", bags},
         {"id", random_keys({size, 2})},
         {"sequence", ragged(size)}},
        {{"bags", weights}, {"id", std::nullopt}, {"sequence", std::nullopt}}};
  }
  TPUEmbedding layer{nullptr};
};

struct RankerImpl : torch::nn::Module {
  RankerImpl() {
    embedding = register_module("embedding", make_embedding());
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            torch::nn::Linear(8 + 16 + 5 + 15 + 2, 16),
            torch::nn::BatchNorm1d(16),
            torch::nn::ReLU(),
            torch::nn::Dropout(0.5),
            torch::nn::Linear(16, 1)));
  }
  std::vector<at::Tensor> forward(
      const Features& features,
      const Weights& weights,
      const at::Tensor& prices) {
    const auto activations = embedding->forward(features, weights);
    const at::Tensor joined = Concatenate()->forward(activations);
    const at::Tensor score = tower->forward(at::cat({joined, prices}, 1));
    return {score.sigmoid().squeeze(1), joined};
  }
  TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(Ranker);

void write_embedding(
    Samples& samples,
    const std::string& name,
    at::ScalarType dtype,
    double tolerance) {
  TPUEmbedding layer = make_embedding();
  export_torchscript(layer, samples.path(name + ".pt"), {.dtype = dtype});
  for (const int64_t size : kSampleBatches) {
    const Batch batch = make_batch(size);
    c10::Dict<std::string, at::Tensor> expected;
    layer->forward(batch.features, batch.weights)
        .for_each([&](const std::string& path, const at::Tensor& activation) {
          expected.insert(path, activation);
        });
    samples.add_case(
        {dict_of(batch.features), weights_of(batch)}, expected, tolerance);
  }
  samples.write_cases(name + ".cases");
}

void write_ranker(
    Samples& samples,
    const std::string& name,
    at::ScalarType dtype,
    double tolerance) {
  Ranker model;
  const Batch example = make_batch(7);
  export_torchscript(
      model,
      samples.path(name + ".pt"),
      {.features = example.features,
       .weights = example.weights,
       .inputs = {example.prices}},
      {.dtype = dtype});
  model->eval();
  for (const int64_t size : kSampleBatches) {
    const Batch batch = make_batch(size);
    samples.add_case(
        {dict_of(batch.features), weights_of(batch), batch.prices},
        Parts(model->forward(batch.features, batch.weights, batch.prices)),
        tolerance);
  }
  samples.write_cases(name + ".cases");
}

void write_keys(Samples& samples) {
  KeyFeatures model;
  export_torchscript(model.layer, samples.path("keys.pt"));
  for (const int64_t size : kSampleBatches) {
    const auto [features, weights] = KeyFeatures::batch(size);
    c10::Dict<std::string, at::Tensor> flat_weights;
    flat_weights.insert(
        "bags", std::get<at::Tensor>(*weights.flatten().front()));
    c10::Dict<std::string, at::Tensor> expected;
    model.layer->forward(features, weights)
        .for_each([&](const std::string& path, const at::Tensor& activation) {
          expected.insert(path, activation);
        });
    samples.add_case({dict_of(features), flat_weights}, expected, 1e-5);
  }
  samples.write_cases("keys.cases");

  write_pt2(samples, "keys", model.layer, [](int64_t size) {
    const auto [features, weights] = KeyFeatures::batch(size);
    return ExportExample{.features = features, .weights = weights};
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: export_samples FOLDER\n";
    return 2;
  }
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  Samples samples(argv[1]);
  const auto embedding_example = [](int64_t size) {
    const Batch batch = make_batch(size);
    return ExportExample{.features = batch.features, .weights = batch.weights};
  };
  const auto ranker_example = [&](int64_t size) {
    const Batch batch = make_batch(size);
    return ExportExample{
        .features = batch.features,
        .weights = batch.weights,
        .inputs = {batch.prices}};
  };
  for (const auto& [name, dtype, tolerance] :
       {std::tuple{"embedding", at::kFloat, 1e-5},
        std::tuple{"embedding_half", at::kHalf, 1e-3},
        std::tuple{"embedding_int8", at::kChar, 2e-2}}) {
    write_embedding(samples, name, dtype, tolerance);
    write_pt2(
        samples, name, make_embedding(), embedding_example, {.dtype = dtype});
  }
  for (const auto& [name, dtype, tolerance] :
       {std::tuple{"ranker", at::kFloat, 1e-5},
        std::tuple{"ranker_int8", at::kChar, 2e-2}}) {
    write_ranker(samples, name, dtype, tolerance);
    write_pt2(samples, name, Ranker(), ranker_example, {.dtype = dtype});
  }
  write_pt2(samples, "sparse", SparseFeatures().layer, [](int64_t size) {
    return ExportExample{.features = SparseFeatures::batch(size)};
  });
  write_keys(samples);
  write_example_models(samples);
  return 0;
}
