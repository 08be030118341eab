#include <ATen/ops/tensor.h>
#include <tessera/layers/layer_json.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/version.h>

#include <iostream>

static_assert(TESSERA_VERSION >= 300, "the version is 0.3.0 or later");

int main() {
  const auto users = tessera::make_table({.vocabulary_size = 10, .dim = 4});
  tessera::TPUEmbedding layer(tessera::TPUEmbeddingOptions{
      .features = {{"user", tessera::FeatureConfig{.table = users}}}});
  std::cout << layer->forward({{"user", at::tensor({1, 2, 3})}})["user"].sizes()
            << "\n";
  // The dense layers are registered when the program starts. Version 0.2 wrote this JSON.
  tessera::layer_from_json(tessera::parse_json(
      R"({"class_name": "MLP", "config": {"units": [8, 1]}, "build_config": {"input_shape": [null, 4]}})"));
}
