#include <ATen/ops/tensor.h>
#include <tessera/layers/tpu_embedding.h>

#include <iostream>

int main() {
  const auto users = tessera::make_table({.vocabulary_size = 10, .dim = 4});
  tessera::TPUEmbedding layer(tessera::TPUEmbeddingOptions{
      .features = {{"user", tessera::FeatureConfig{.table = users}}}});
  std::cout << layer->forward({{"user", at::tensor({1, 2, 3})}})["user"].sizes()
            << "\n";
}
