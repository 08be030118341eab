// SPDX-License-Identifier: Apache-2.0
// Teaches the smallest whole program: a ranking model with two tables and a tower,
// trained on generated clicks in an ordinary loop.
// snippet: quick_start
#include <tessera/common/thread_spins.h>
#include <tessera/tessera.h>

#include <iostream>

namespace optim = tessera::optim;
using tessera::FeatureConfig;

struct RankerImpl : torch::nn::Module {
  RankerImpl() {
    const auto users = tessera::make_table(
        {.name = "users", .vocabulary_size = 1000, .dim = 16});
    const auto movies = tessera::make_table(
        {.name = "movies",
         .vocabulary_size = 500,
         .dim = 16,
         .optimizer = optim::Adagrad{.learning_rate = 0.1}});
    embedding = register_module(
        "embedding",
        tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
            .features =
                {{"user", FeatureConfig{.table = users}},
                 {"movie", FeatureConfig{.table = movies}},
                 {"history", FeatureConfig{.table = movies}}},
            .optimizer = optim::Adam{.learning_rate = 0.01}}));
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            tessera::Concatenate(),
            torch::nn::Linear(48, 32),
            torch::nn::ReLU(),
            torch::nn::Linear(32, 1)));
  }

  torch::Tensor forward(const tessera::Features& features) {
    return tower->forward(embedding->forward(features)).squeeze(1);
  }

  tessera::TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(Ranker);

int main(int, char** argv) try {
  tessera::limit_thread_spins(argv);
  torch::manual_seed(1);
  Ranker model;
  // The dense weights and the virtual variable; no table is in parameters().
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  std::cout << model->embedding->summary();

  for (int step = 0; step <= 300; ++step) {
    const auto user = torch::randint(1000, {256});
    const auto movie = torch::randint(500, {256});
    const auto history = tessera::RaggedFeature::from_lengths(
        torch::randint(500, {256 * 5}), torch::full({256}, 5, torch::kLong));
    const auto click = (user % 10 + movie % 10 > 9).to(torch::kFloat);

    optimizer.zero_grad();
    const auto loss = torch::binary_cross_entropy_with_logits(
        model->forward(
            {{"user", user}, {"movie", movie}, {"history", history}}),
        click);
    loss.backward();  // updates the tables
    optimizer.step();
    if (step % 100 == 0) {
      std::cout << "step " << step << "  loss " << loss.item<float>() << "\n";
    }
  }
  tessera::save_to_file(model, "ranker.pt");  // weights, tables, slots, steps
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << "\n";
  return 1;
} catch (const std::exception& error) {
  std::cerr << "[quick_start] " << error.what() << "\n";
  return 1;
}
// end snippet
