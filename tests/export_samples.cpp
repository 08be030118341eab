// SPDX-License-Identifier: Apache-2.0
// Writes exported models, batches for them, and the results that Tessera gives:
//   export_samples FOLDER  ->  NAME.pt, NAME.cases (torch::pickle_save)
// run_torchscript.cpp and test_torchscript.py read these files without Tessera.
#include <tessera/layers/concatenate.h>
#include <tessera/layers/export_torchscript.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using tessera::FeatureConfig;
using tessera::Features;
using tessera::Nest;
using Parts = c10::List<at::Tensor>;

constexpr int64_t kBatches[] = {0, 1, 5, 64};
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

// A case has the arguments of forward(), its expected result and the tolerance.
class Samples {
 public:
  explicit Samples(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
  }

  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

  void add_case(
      std::vector<c10::IValue> arguments,
      c10::IValue expected,
      double tolerance) {
    cases_.push_back(c10::ivalue::Tuple::create(
        {c10::ivalue::Tuple::create(std::move(arguments)),
         std::move(expected),
         tolerance}));
  }

  void write_cases(const std::string& name) {
    const std::vector<char> bytes =
        torch::jit::pickle_save(c10::ivalue::Tuple::create(cases_));
    std::ofstream file(path(name + ".cases"), std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    cases_.clear();
    std::cout << "wrote " << name << "\n";
  }

 private:
  std::filesystem::path folder_;
  std::vector<c10::IValue> cases_;
};

void write_embedding(
    Samples& samples,
    const std::string& name,
    at::ScalarType dtype,
    double tolerance) {
  tessera::TPUEmbedding layer = make_embedding();
  tessera::export_torchscript(
      layer, samples.path(name + ".pt"), {.dtype = dtype});
  for (const int64_t size : kBatches) {
    const Batch batch = make_batch(size);
    c10::Dict<std::string, at::Tensor> expected;
    layer->forward(batch.features, batch.weights)
        .for_each([&](const std::string& path, const at::Tensor& activation) {
          expected.insert(path, activation);
        });
    samples.add_case(
        {dict_of(batch.features), weights_of(batch)}, expected, tolerance);
  }
  samples.write_cases(name);
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
  for (const int64_t size : kBatches) {
    const Batch batch = make_batch(size);
    samples.add_case(
        {dict_of(batch.features), weights_of(batch), batch.prices},
        Parts(model->forward(batch.features, batch.weights, batch.prices)),
        tolerance);
  }
  samples.write_cases(name);
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
  return 0;
}
