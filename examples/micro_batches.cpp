// SPDX-License-Identifier: Apache-2.0
// Teaches gradient accumulation: one Keras optimizer for tables and dense weights, with
// four micro-batches and a clipped gradient norm per step.
#include <tessera/common/thread_spins.h>
#include <tessera/tessera.h>

#include <iostream>

namespace optim = tessera::optim;

int main(int, char** argv) {
  tessera::limit_thread_spins(argv);
  torch::manual_seed(1);
  // The output of keras.optimizers.serialize(AdamW(CosineDecay(0.01, 300))).
  const auto spec = optim::translate_keras_optimizer(
      R"({"class_name": "AdamW", "config": {
           "weight_decay": 0.004, "beta_1": 0.9, "beta_2": 0.999,
           "learning_rate": {"class_name": "CosineDecay", "config": {
             "initial_learning_rate": 0.01, "decay_steps": 300}}}})",
      optim::Fidelity::kLazy);

  const auto words =
      tessera::make_table({.name = "words", .vocabulary_size = 1000, .dim = 8});
  tessera::TPUEmbedding embedding(tessera::TPUEmbeddingOptions{
      .features = {{"text", tessera::FeatureConfig{.table = words}}},
      .optimizer = spec,
      .apply = tessera::Apply::kOnStep});
  torch::nn::Linear head(8, 1);

  auto parameters = embedding->parameters();
  for (const auto& parameter : head->parameters()) {
    parameters.push_back(parameter);
  }
  tessera::Combined optimizer(
      optim::make_optimizer(spec, parameters),
      {embedding},
      {.accumulation = tessera::Accumulation::kMean,
       .non_finite = tessera::NonFinite::kSkip});

  for (int step = 0; step <= 300; ++step) {
    float total = 0.0F;
    optimizer.zero_grad();
    for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
      const auto ids = torch::randint(1000, {64 * 10});
      const auto text = tessera::RaggedFeature::from_lengths(
          ids, torch::full({64}, 10, torch::kLong));
      const auto label =
          (ids.view({64, 10}) % 2).to(torch::kFloat).mean(1) > 0.5;
      const auto loss = torch::binary_cross_entropy_with_logits(
          head->forward(embedding->forward({{"text", text}})["text"])
              .squeeze(1),
          label.to(torch::kFloat));
      loss.backward();  // accumulates gradients
      total += loss.item<float>() / 4;
    }
    const double norm = optimizer.clip_grad_norm_(1.0);
    optimizer.step();  // updates dense weights and the table
    if (step % 100 == 0) {
      std::cout << "step " << step << "  loss " << total << "  gradient norm "
                << norm << "\n";
    }
  }
}
