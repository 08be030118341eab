// SPDX-License-Identifier: Apache-2.0
// A model with a PartialTPUEmbedding is exported like one with a TPUEmbedding.
#include <tessera/layers/partial_tpu_embedding.h>
#include <tessera/optim/optimizers/sgd.h>

#include "packages/export/tests/export_test_util.h"

namespace tessera::test::export_partial_embedding_test {

// One small and one large table.
PartialTPUEmbeddingOptions options() {
  return {
      .features =
          {{"small", feature_of("small", 5, 3)},
           {"large", feature_of("large", 20, 3)}},
      .optimizer = optim::SGD{},
      .size_threshold = 10};
}

Features batch() {
  return {{"small", int64s({4, 0})}, {"large", ragged({{19, 3, 3}, {}})}};
}

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    embedding = register_module("embedding", PartialTPUEmbedding(options()));
    tower = register_module("tower", torch::nn::Linear(6, 1));
  }
  at::Tensor forward(const Features& features) {
    return tower->forward(Concatenate()->forward(embedding->forward(features)));
  }
  PartialTPUEmbedding embedding{nullptr};
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(Model);

TEST(ExportPartialEmbeddingTest, GivesTheSameResults) {
  Model model;
  const std::string file = new_file();
  export_torchscript(model, file, {.features = batch()});
  torch::jit::Module exported = torch::jit::load(file);
  const at::NoGradGuard no_grad;
  expect_close(
      exported.forward({to_dict(all_parts_of(batch()))}).toTensor(),
      model->forward(batch()));
}

}  // namespace tessera::test::export_partial_embedding_test
