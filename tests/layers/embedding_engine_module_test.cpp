// SPDX-License-Identifier: Apache-2.0
// An EmbeddingEngine as a module of a model.
#include <tessera/layers/dense_parameters.h>
#include <tessera/layers/layer.h>

#include "tests/layers/engine_module_fixture.h"

namespace tessera::test::embedding_engine_module_test {

using namespace engine_module;

TEST(EmbeddingEngineModuleTest, SavesAndLoadsWithAModel) {
  Ranker model(1), loaded(2);
  train(*model->engine, 0, 3);
  const std::string bytes = bytes_of(model);
  EXPECT_NE(bytes_of(loaded), bytes);
  load_bytes(loaded, bytes);
  EXPECT_EQ(bytes_of(loaded), bytes);
  EXPECT_EQ(loaded->engine->iterations(), 3);
  EXPECT_TENSOR_EQ(loaded->forward(batch()), model->forward(batch()));
  train(*model->engine, 3, 5);
  train(*loaded->engine, 3, 5);
  EXPECT_EQ(bytes_of(loaded), bytes_of(model));
}

TEST(EmbeddingEngineModuleTest, ExchangesArchivesWithALayer) {
  EmbeddingEngineModule engine(make_options());
  train(*engine, 0, 3);
  TPUEmbedding layer = layer_of(
      make_features(), optim::Adagrad{.learning_rate = 0.5}, {.seed = 5});
  load_bytes(layer, bytes_of(engine));
  EXPECT_EQ(layer->iterations(), 3);
  layer->forward(batch(1))["user"].sum().backward();
  load_bytes(engine, bytes_of(layer));
  EXPECT_EQ(engine->iterations(), 4);
  for (const char* table : {"users", "items"}) {
    EXPECT_TENSOR_EQ(
        engine->embedding_tables()[table], layer->embedding_tables()[table]);
  }
}

TEST(EmbeddingEngineModuleTest, AFailedLoadChangesNothing) {
  EmbeddingEngineModule engine(make_options());
  train(*engine, 0, 2);
  const std::string before = bytes_of(engine);
  EmbeddingEngineOptions adam = make_options(1);
  adam.optimizer = optim::Adam{};
  const EmbeddingEngineModule other(adam);
  EXPECT_VALUE_ERROR(
      load_bytes(engine, bytes_of(other)),
      "table 'users': the optimizer is Adagrad, but the saved one is Adam");
  EXPECT_VALUE_ERROR(
      load_bytes(engine, bytes_of(other)), "[EmbeddingEngine::load]");
  EXPECT_EQ(bytes_of(engine), before);
  std::istringstream stream(bytes_of(other));
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  engine->load(archive, {.slots = false});
  EXPECT_TENSOR_EQ(
      engine->embedding_tables()["users"], other->embedding_tables()["users"]);
  EXPECT_EQ(engine->iterations(), 2);
}

TEST(EmbeddingEngineModuleTest, ClonesOwnTheirTables) {
  Ranker model(1);
  train(*model->engine, 0, 2);
  model->engine->enqueue(batch(), {}, {.name = "in flight"});
  const std::string bytes = bytes_of(model);
  const auto clone = std::dynamic_pointer_cast<RankerImpl>(model->clone());
  ASSERT_NE(clone, nullptr);
  EXPECT_EQ(bytes_of(Ranker(clone)), bytes);
  const auto engine = std::dynamic_pointer_cast<EmbeddingEngineModuleImpl>(
      model->engine->clone());
  EXPECT_EQ(bytes_of(EmbeddingEngineModule(engine)), bytes_of(model->engine));
  EXPECT_EQ(engine->iterations(), 2);
  EXPECT_EQ(engine->config(), model->engine->config());  // with its shapes

  train(*clone->engine, 2, 3);
  train(*engine, 2, 3);
  EXPECT_EQ(bytes_of(model), bytes);
  EXPECT_EQ(bytes_of(EmbeddingEngineModule(engine)), bytes_of(clone->engine));
  EXPECT_VALUE_ERROR(clone->engine->drop("in flight"), "in flight");
  model->engine->drop("in flight");
  train(*model->engine, 2, 3);
  EXPECT_EQ(bytes_of(model->engine), bytes_of(clone->engine));
}

TEST(EmbeddingEngineModuleTest, TablesAreNotParameters) {
  Ranker model(1);
  EXPECT_TRUE(model->engine->parameters().empty());
  EXPECT_EQ(model->parameters().size(), 2U);
  EXPECT_EQ(dense_parameters(*model).size(), 2U);
  const std::string tables = bytes_of(model->engine);
  model->to(torch::kDouble);
  for (const at::Tensor& weights : model->parameters()) {
    EXPECT_EQ(weights.scalar_type(), torch::kDouble);
  }
  EXPECT_EQ(bytes_of(model->engine), tables);
  const std::string text = summary(*model);
  EXPECT_CONTAINS(text, "users");
  EXPECT_CONTAINS(text, "accumulators");
}

}  // namespace tessera::test::embedding_engine_module_test
