// SPDX-License-Identifier: Apache-2.0
// Writes exported models, batches for them, and the results that Tessera gives:
//   export_samples FOLDER  ->  NAME.pt, NAME.cases, NAME.pt2, NAME.pt2cases
// The cases are written by torch::pickle_save. run_torchscript.cpp, test_torchscript.py and
// test_pt2.py read these files without Tessera.
#include <tessera/export/export_pt2.h>
#include <tessera/export/export_torchscript.h>
#include <tessera/layers/dense/concatenate.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "tests/export_samples.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace {

using tessera::FeatureConfig;
using tessera::Features;
using tessera::Nest;
using tessera::test::add_calls;
using tessera::test::arguments_of;
using tessera::test::kSampleBatches;
using tessera::test::Parts;
using tessera::test::Samples;

constexpr const char* kOddName = "quote\" \n \xc3\xa9";

tessera::TPUEmbedding make_embedding() {
  const auto users =
      tessera::make_table({.name = "class", .vocabulary_size = 1000, .dim = 8});
  const auto items = tessera::make_table(
      {.name = "items",
       .vocabulary_size = 500,
       .dim = 5,
       .combiner = tessera::Combiner::kSqrtn});
  return tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
      .features =
          {{"user", FeatureConfig{.table = users}},
           {kOddName,
            FeatureConfig{
                .table = users, .out_of_range = tessera::OutOfRange::kZero}},
           {"history",
            Nest<FeatureConfig>::list(
                {FeatureConfig{.table = items},
                 FeatureConfig{.table = items, .max_sequence_length = 3}})}},
      .optimizer = tessera::optim::Adagrad{}});
}

struct Batch {
  Features features;
  tessera::Weights weights;
  at::Tensor flat_weights;
  at::Tensor prices;
};

Batch make_batch(int64_t size) {
  const auto ragged = [&] {
    const at::Tensor lengths = at::randint(5, {size}, at::kLong);
    const int64_t nnz = lengths.sum().item<int64_t>();
    return tessera::RaggedFeature::from_lengths(
        at::randint(500, {nnz}, at::kLong), lengths);
  };
  const tessera::RaggedFeature bags = ragged();
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
            tessera::Weights::list(
                {std::optional<tessera::Feature>(weights), std::nullopt})}},
      .flat_weights = weights,
      .prices = at::rand({size, 2})};
}

// The first argument of the exported forward().
c10::IValue dict_of(const Features& features) {
  c10::Dict<std::string, Parts> dict;
  features.for_each(
      [&](const std::string& path, const tessera::Feature& feature) {
        if (const auto* dense = std::get_if<at::Tensor>(&feature)) {
          dict.insert(path, Parts({*dense}));
        } else {
          const auto& ragged = std::get<tessera::RaggedFeature>(feature);
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

tessera::SparseFeature sparse_ids(int64_t size, int64_t positions) {
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
    const auto items = tessera::make_table(
        {.name = "items", .vocabulary_size = 500, .dim = 5});
    layer = tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
        .features =
            {{"bags", FeatureConfig{.table = items}},
             {"cells",
              FeatureConfig{
                  .table = items, .out_of_range = tessera::OutOfRange::kZero}},
             {"sequence",
              FeatureConfig{.table = items, .max_sequence_length = 3}}},
        .optimizer = tessera::optim::Adagrad{}});
  }
  static Features batch(int64_t size) {
    return {
        {"bags", sparse_ids(size, 1)},
        {"cells", sparse_ids(size, 2)},
        {"sequence", sparse_ids(size, 1)}};
  }
  tessera::TPUEmbedding layer{nullptr};
};

// Features of a key table. Half of the keys in a batch have no row, and some are the
// padding key.
struct KeyFeatures {
  static constexpr int64_t kPadding = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kKeys = 500;

  KeyFeatures() {
    const auto table = tessera::make_table(
        {.name = "keys",
         .dim = 6,
         .keys =
             tessera::DynamicKeys{.capacity = kKeys, .padding_key = kPadding}});
    layer = tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
        .features =
            {{"bags", FeatureConfig{.table = table}},
             {"id", FeatureConfig{.table = table}},
             {"sequence",
              FeatureConfig{.table = table, .max_sequence_length = 3}}},
        .optimizer = tessera::optim::Adagrad{}});
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
  static tessera::RaggedFeature ragged(int64_t size) {
    const at::Tensor lengths = at::randint(5, {size}, at::kLong);
    return tessera::RaggedFeature::from_lengths(
        random_keys({lengths.sum().item<int64_t>()}), lengths);
  }
  static std::pair<Features, tessera::Weights> batch(int64_t size) {
    const tessera::RaggedFeature bags = ragged(size);
    const std::optional<tessera::Feature> weights =
        at::rand({bags.values.numel()});
    return {
        {{"bags", bags},
         {"id", random_keys({size, 2})},
         {"sequence", ragged(size)}},
        {{"bags", weights}, {"id", std::nullopt}, {"sequence", std::nullopt}}};
  }
  tessera::TPUEmbedding layer{nullptr};
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
      const tessera::Weights& weights,
      const at::Tensor& prices) {
    const auto activations = embedding->forward(features, weights);
    const at::Tensor joined = tessera::Concatenate()->forward(activations);
    const at::Tensor score = tower->forward(at::cat({joined, prices}, 1));
    return {score.sigmoid().squeeze(1), joined};
  }
  tessera::TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(Ranker);

void write_embedding(
    Samples& samples,
    const std::string& name,
    at::ScalarType dtype,
    double tolerance) {
  tessera::TPUEmbedding layer = make_embedding();
  tessera::export_torchscript(
      layer, samples.path(name + ".pt"), {.dtype = dtype});
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
  tessera::export_torchscript(
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

void write_pt2_embedding(
    Samples& samples,
    const std::string& name,
    at::ScalarType dtype) {
  const tessera::TPUEmbedding layer = make_embedding();
  const Batch example = make_batch(100);
  std::cout << to_string(tessera::export_pt2(
      layer,
      samples.path(name + ".pt2"),
      {.features = example.features, .weights = example.weights},
      {.dtype = dtype}));
  const tessera::Pt2Program program(samples.path(name + ".pt2"));
  add_calls(
      samples,
      name,
      [](int64_t size) {
        const Batch batch = make_batch(size);
        return arguments_of(batch.features, batch.weights);
      },
      [&](const std::vector<at::Tensor>& arguments) {
        return program.run(arguments);
      });
}

void write_pt2_sparse(Samples& samples) {
  const SparseFeatures model;
  const std::string path = samples.path("sparse.pt2");
  tessera::export_pt2(
      model.layer, path, {.features = SparseFeatures::batch(100)});
  const tessera::Pt2Program program(path);
  add_calls(
      samples,
      "sparse",
      [](int64_t size) {
        return arguments_of(SparseFeatures::batch(size), {});
      },
      [&](const std::vector<at::Tensor>& arguments) {
        return program.run(arguments);
      });
}

void write_keys(Samples& samples) {
  KeyFeatures model;
  tessera::export_torchscript(model.layer, samples.path("keys.pt"));
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

  const std::string path = samples.path("keys.pt2");
  const auto [features, weights] = KeyFeatures::batch(100);
  tessera::export_pt2(
      model.layer, path, {.features = features, .weights = weights});
  const tessera::Pt2Program program(path);
  add_calls(
      samples,
      "keys",
      [](int64_t size) {
        const auto batch = KeyFeatures::batch(size);
        return arguments_of(batch.first, batch.second);
      },
      [&](const std::vector<at::Tensor>& arguments) {
        return program.run(arguments);
      });
}

void write_pt2_ranker(
    Samples& samples,
    const std::string& name,
    at::ScalarType dtype) {
  Ranker model;
  const Batch example = make_batch(100);
  tessera::export_pt2(
      model,
      samples.path(name + ".pt2"),
      {.features = example.features,
       .weights = example.weights,
       .inputs = {example.prices}},
      {.dtype = dtype});
  const tessera::Pt2Program program(samples.path(name + ".pt2"));
  add_calls(
      samples,
      name,
      [](int64_t size) {
        const Batch batch = make_batch(size);
        std::vector<at::Tensor> arguments =
            arguments_of(batch.features, batch.weights);
        arguments.push_back(batch.prices);
        return arguments;
      },
      [&](const std::vector<at::Tensor>& arguments) {
        return program.run(arguments);
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
  write_embedding(samples, "embedding", at::kFloat, 1e-5);
  write_embedding(samples, "embedding_half", at::kHalf, 1e-3);
  write_embedding(samples, "embedding_int8", at::kChar, 2e-2);
  write_ranker(samples, "ranker", at::kFloat, 1e-5);
  write_ranker(samples, "ranker_int8", at::kChar, 2e-2);
  write_pt2_embedding(samples, "embedding", at::kFloat);
  write_pt2_embedding(samples, "embedding_half", at::kHalf);
  write_pt2_embedding(samples, "embedding_int8", at::kChar);
  write_pt2_sparse(samples);
  write_keys(samples);
  tessera::test::write_example_models(samples);
  write_pt2_ranker(samples, "ranker", at::kFloat);
  write_pt2_ranker(samples, "ranker_int8", at::kChar);
  return 0;
}
