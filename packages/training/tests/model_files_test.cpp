// SPDX-License-Identifier: Apache-2.0
// save_weights() and load_weights() with the layers and tables of the core.
#include <tessera/engine/table_module.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/training/checkpoint.h>

#include "tests/layers/engine_module_fixture.h"
#include "tests/serialization/recording_disk.h"

namespace tessera::test::model_files_test {

TEST(SaveWeightsTest, StoresTheTablesOfAnEngine) {
  const MemoryFolder folder;
  engine_module::Ranker model(1), loaded(2);
  engine_module::train(*model->engine, 0, 2);
  training::save_weights(*model, folder / "run");
  engine_module::train(*model->engine, 2, 3);
  training::save_weights(*model, folder / "run");
  EXPECT_TRUE(training::has_weights(*loaded, folder / "run"));
  training::load_weights(*loaded, folder / "run");
  EXPECT_EQ(engine_module::bytes_of(loaded), engine_module::bytes_of(model));
}

TEST(SaveWeightsTest, StoresKeys) {
  const auto make_layer = [](uint64_t seed) {
    return TPUEmbedding(TPUEmbeddingOptions{
        .features =
            {{"item",
              feature_of(
                  {.name = "items",
                   .dim = 3,
                   .keys = DynamicKeys{.capacity = 40}})}},
        .optimizer = optim::Adagrad{.learning_rate = 0.5},
        .seed = seed});
  };
  const MemoryFolder folder;
  TPUEmbedding layer = make_layer(0);
  layer->forward({{"item", int64s({7, -7, 1LL << 40, 7})}})["item"]
      .sum()
      .backward();
  training::save_weights(*layer, folder / "model");
  TPUEmbedding loaded = make_layer(99);
  EXPECT_FALSE(saved(loaded) == saved(layer));
  training::load_weights(*loaded, folder / "model");
  EXPECT_TRUE(saved(loaded) == saved(layer));
}

// A model is loaded completely or not at all, even if only the second layer is
// damaged.
TEST(LoadWeightsTest, DamageInTheSecondLayerKeepsTheFirstUnchanged) {
  struct ModelImpl : torch::nn::Module {
    explicit ModelImpl(uint64_t seed) {
      const TPUEmbeddingOptions options{
          .features =
              {{"seen", feature_of("movies", 30, 3)},
               {"user", feature_of("users", 4, 2)}},
          .optimizer = optim::SGD{.gradient_accumulation_steps = 3},
          .seed = seed};
      first = register_module("first", TPUEmbedding(options));
      second = register_module("second", TPUEmbedding(options));
    }
    void accumulate() {
      for (TPUEmbedding& layer : {std::ref(first), std::ref(second)}) {
        layer
            ->forward(
                {{"seen", ragged({{7, 2, 2, 29}, {1, 5}})},
                 {"user", int64s({1, 3})}})["user"]
            .sum()
            .backward();
      }
    }
    TPUEmbedding first{nullptr};
    TPUEmbedding second{nullptr};
  };
  const MemoryFolder folder;
  ModelImpl model(0);
  model.accumulate();
  training::save_weights(model, folder / "run");
  ModelImpl other(1);
  const std::string before = saved(other.first) + saved(other.second);
  int64_t files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder.path() / "run")) {
    const std::string path = entry.path();
    if (path.find("layer_1") == std::string::npos ||
        path.find("accumulated_sums") == std::string::npos) {
      continue;
    }
    ++files;
    const std::string good = read_file(path);
    std::string bad = good;
    bad[0] = static_cast<char>(bad[0] ^ 1);
    write_file(path, bad);
    EXPECT_VALUE_ERROR(
        training::load_weights(other, folder / "run"), "accumulated_sums");
    EXPECT_TRUE(saved(other.first) + saved(other.second) == before);
    write_file(path, good);
  }
  EXPECT_EQ(files, 2);
  training::load_weights(other, folder / "run");
  EXPECT_EQ(saved(other.second), saved(model.second));
}

}  // namespace tessera::test::model_files_test
