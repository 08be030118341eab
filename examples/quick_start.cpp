// SPDX-License-Identifier: Apache-2.0
// Teaches the smallest whole program: a ranking model with two tables, trained on generated
// clicks in an ordinary loop.
// snippet: quick_start
#include <tessera/tessera.h>

#include <iostream>

int main(int, char** argv) {
  tessera::limit_thread_spins(argv);
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
  torch::optim::Adam optimizer(model->parameters(), 1e-2);

  for (int step = 0; step <= 300; ++step) {
    // A batch of 256 examples. A history is a list of 5 movies, whose mean counts.
    const auto user = torch::randint(1000, {256});
    const auto movie = torch::randint(500, {256});
    const auto history = tessera::RaggedFeature::from_lengths(
        torch::randint(500, {256 * 5}), torch::full({256}, 5, torch::kLong));
    const auto click = (user % 10 + movie % 10 > 9).to(torch::kFloat);

    optimizer.zero_grad();
    const auto logits = model->forward(tessera::Features{
        {"user", user}, {"movie", movie}, {"history", history}});
    const auto loss =
        torch::binary_cross_entropy_with_logits(logits.squeeze(1), click);
    loss.backward();  // updates the rows of this batch in both tables
    optimizer.step();  // updates the dense weights
    if (step % 100 == 0) {
      std::cout << "step " << step << "  loss " << loss.item<float>() << "\n";
    }
  }
  tessera::save_to_file(model, "ranker.pt");  // weights, tables, their state
}
// end snippet
