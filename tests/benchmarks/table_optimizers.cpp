// SPDX-License-Identifier: Apache-2.0
// Trains one model with several optimizers of its tables, and prints how the loss falls and
// how far rows move, as JSON. table_optimizers.py draws docs/table_optimizers.svg from it.
//
// The clicks are generated: a click has the probability sigmoid(4 <user, movie>), where
// users and movies have hidden unit vectors with four numbers. The loss is a mean over
// 4096 examples. The smallest possible loss is that of the true probabilities.
#include <tessera/tessera.h>

#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace optim = tessera::optim;
namespace training = tessera::training;
using tessera::FeatureConfig;
using torch::Tensor;

namespace {

constexpr int64_t kUsers = 10'000;
constexpr int64_t kMovies = 2'000;
constexpr int64_t kDim = 16;
constexpr int64_t kBatch = 4096;
constexpr int64_t kStepsPerEpoch = 50;
constexpr int64_t kEpochs = 40;

struct Batch {
  Tensor user = {};
  Tensor movie = {};
  Tensor click = {};
  Tensor probability = {};
};

struct Truth {
  Tensor users = torch::nn::functional::normalize(torch::randn({kUsers, 4}));
  Tensor movies = torch::nn::functional::normalize(torch::randn({kMovies, 4}));

  Batch draw(int64_t size) const {
    const Tensor user = torch::randint(kUsers, {size});
    const Tensor movie = torch::randint(kMovies, {size});
    const Tensor probability = torch::sigmoid(
        4.0 *
        (users.index_select(0, user) * movies.index_select(0, movie)).sum(1));
    return {user, movie, torch::bernoulli(probability), probability};
  }
};

nlohmann::json train(
    const std::string& name,
    const optim::OptimizerSpec& optimizer,
    const Truth& truth,
    const std::vector<Batch>& held_out) {
  torch::manual_seed(2);
  const auto table = [](const char* table_name, int64_t rows) {
    return FeatureConfig{
        .table = tessera::make_table(
            {.name = table_name, .vocabulary_size = rows, .dim = kDim})};
  };
  tessera::TPUEmbedding embedding(tessera::TPUEmbeddingOptions{
      .features =
          {{"user", table("users", kUsers)},
           {"movie", table("movies", kMovies)}},
      .optimizer = optimizer});
  torch::optim::SGD virtual_optimizer(embedding->parameters(), 0.1);
  const auto loss_of = [&](const Batch& batch) {
    const auto rows =
        embedding->forward({{"user", batch.user}, {"movie", batch.movie}});
    return torch::binary_cross_entropy_with_logits(
        (rows["user"] * rows["movie"]).sum(1), batch.click);
  };
  const auto activity = std::make_shared<training::TableActivity>(
      std::vector<tessera::TPUEmbedding>{embedding});
  const training::History history = training::fit(
      [&] {
        std::vector<Batch> batches;
        for (int64_t i = 0; i < kStepsPerEpoch; ++i) {
          batches.push_back(truth.draw(kBatch));
        }
        return batches;
      },
      training::make_train_step(virtual_optimizer, loss_of),
      {.epochs = kEpochs,
       .model = embedding.ptr(),
       .validation = training::make_pass(held_out, loss_of),
       .callbacks = {activity}});
  std::cerr << name << "\n" << training::to_string(activity->measure());
  nlohmann::json run{{"name", name}};
  for (size_t i = 0; i < history.epochs.size(); ++i) {
    run["steps"].push_back(kStepsPerEpoch * static_cast<int64_t>(i + 1));
    run["loss"].push_back(history["val_loss"][i]);
    run["moved"].push_back(history["moved_users"][i]);
  }
  return run;
}

}  // namespace

int main() {
  torch::manual_seed(1);
  const Truth truth;
  std::vector<Batch> held_out;
  double best = 0.0;
  for (int i = 0; i < 10; ++i) {
    held_out.push_back(truth.draw(kBatch));
    best += torch::binary_cross_entropy(
                held_out.back().probability, held_out.back().click)
                .item<double>() /
        10.0;
  }
  const auto adagrad = [](double start) {
    return optim::Adagrad{
        .learning_rate = 0.1, .initial_accumulator_value = start};
  };
  const std::vector<std::pair<std::string, optim::OptimizerSpec>> optimizers{
      {"Adagrad 0.1, start 0.1 (the default)", adagrad(0.1)},
      {"Adagrad 0.1, start 1e-2", adagrad(1e-2)},
      {"Adagrad 0.1, start 1e-6", adagrad(1e-6)},
      {"SGD 0.1", optim::SGD{.learning_rate = 0.1}},
      {"SGD 100", optim::SGD{.learning_rate = 100.0}},
      {"Adam 0.01", optim::Adam{.learning_rate = 0.01}}};
  nlohmann::json runs = nlohmann::json::array();
  for (const auto& [name, optimizer] : optimizers) {
    runs.push_back(train(name, optimizer, truth, held_out));
  }
  std::cout << nlohmann::json{{"best_loss", best}, {"runs", runs}}.dump(1)
            << "\n";
  return 0;
}
