// SPDX-License-Identifier: Apache-2.0
// Teaches your own training loop around EmbeddingEngine: the engine looks up the next
// batch while the model computes on this one. The model is a logistic regression on the
// dot product of a user's and a movie's row.
#include <tessera/common/thread_spins.h>
#include <tessera/tessera.h>

#include <iostream>

namespace optim = tessera::optim;
using tessera::FeatureConfig;

namespace {

struct Batch {
  tessera::Features features;
  torch::Tensor click;
};

Batch draw_batch() {
  const auto user = torch::randint(200, {256});
  const auto movie = torch::randint(100, {256});
  return {
      {{"user", user}, {"movie", movie}},
      (user % 10 + movie % 10 > 9).to(torch::kFloat)};
}

}  // namespace

int main(int, char** argv) {
  tessera::limit_thread_spins(argv);
  torch::manual_seed(1);
  const auto users =
      tessera::make_table({.name = "users", .vocabulary_size = 200, .dim = 8});
  const auto movies =
      tessera::make_table({.name = "movies", .vocabulary_size = 100, .dim = 8});
  tessera::EmbeddingEngine engine({
      .features =
          {{"user", FeatureConfig{.table = users}},
           {"movie", FeatureConfig{.table = movies}}},
      .optimizer = optim::Adam{.learning_rate = 0.05},
      .pipelining = tessera::Pipelining::kOn,
  });

  Batch next = draw_batch();
  engine.enqueue(next.features);
  for (int step = 0; step <= 300; ++step) {
    const Batch batch = std::move(next);
    next = draw_batch();
    engine.enqueue(next.features);  // starts its lookup in the background

    const auto rows = engine.dequeue();  // the activations of `batch`
    const auto loss = torch::binary_cross_entropy_with_logits(
        (rows["user"] * rows["movie"]).sum(1), batch.click);
    loss.backward();
    engine.apply_gradients();  // updates the rows of `batch`
    if (step % 100 == 0) {
      std::cout << "step " << step << "  loss " << loss.item<float>() << "\n";
    }
  }
  // Drops the last batch, which was not trained on. embedding_lookup() needs no queue.
  engine.drop();
  std::cout << "user 7: "
            << engine.embedding_lookup({{"user", torch::tensor({7})}})["user"]
            << "\n";
}
