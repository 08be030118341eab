// SPDX-License-Identifier: Apache-2.0
// Exports of models with an EmbeddingEngineModule.

#include "packages/export/tests/export_test_util.h"
#include "tests/layers/engine_module_fixture.h"

namespace tessera::test::export_engine_module_test {

using namespace engine_module;

// Returns the result of an exported model.
at::Tensor run_model(torch::jit::Module& loaded, const Features& features) {
  const at::NoGradGuard no_grad;
  return loaded.forward({to_dict(all_parts_of(features))}).toTensor();
}

TEST(ExportEngineModuleTest, IsExportedAlone) {
  EmbeddingEngineModule engine(make_options());
  train(*engine, 0, 2);
  const std::string path = new_file();
  export_torchscript(*engine, path);
  auto loaded = torch::jit::load(path);
  const auto actual = run_embedding(loaded, all_parts_of(batch(3)));
  const auto expected = engine->embedding_lookup(batch(3));
  expect_close(actual.at("user"), expected["user"]);
  expect_close(actual.at("item"), expected["item"]);
  train(*engine, 2, 3);  // the engine still trains

  EmbeddingEngine plain(make_options());
  export_torchscript(plain, path, {.features = {"user"}});
  loaded = torch::jit::load(path);
  EXPECT_EQ(
      run_embedding(loaded, {{"user", parts_of(batch()["user"])}}).size(), 1U);
}

TEST(ExportEngineModuleTest, IsExportedWithinAModel) {
  const RankerImpl::Forward lookups[] = {
      {},
      [](EmbeddingEngineModule& engine, const Features& features) {
        engine->enqueue(features, {}, {.training = false});
        return engine->dequeue();
      },
      [](EmbeddingEngineModule& engine, const Features& features) {
        engine->enqueue(
            {{"user", int64s({1})}, {"item", ragged({{1}})}},
            {},
            {.name = "other"});
        engine->enqueue(features, {}, {.name = "this"});
        return engine->dequeue("this");
      }};
  for (const RankerImpl::Forward& lookup : lookups) {
    Ranker model(1, lookup);
    train(*model->engine, 0, 2);
    const std::string before = bytes_of(model);
    const std::string path = new_file();
    export_torchscript(model, path, {.features = batch()});
    EXPECT_EQ(bytes_of(model), before);
    auto loaded = torch::jit::load(path);
    for (int64_t step = 0; step < 3; ++step) {
      const at::Tensor expected =
          model->score(model->engine->embedding_lookup(batch(step)));
      expect_close(run_model(loaded, batch(step)), expected.detach());
    }
    // The tables in the file belong to the module `engine`.
    EXPECT_TRUE(loaded.attr("engine").toModule().hasattr("table_0"));
    // The export leaves no batch in the engine.
    EXPECT_VALUE_ERROR(model->engine->drop("this"), "this");
    train(*model->engine, 2, 3);
  }
}

void expect_refused(RankerImpl::Forward lookup, const std::string& text) {
  Ranker model(1, std::move(lookup));
  train(*model->engine, 0, 1);
  const std::string before = bytes_of(model);
  const std::string path = new_file();
  try {
    export_torchscript(model, path, {.features = batch()});
    ADD_FAILURE() << "no error: " << text;
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_CONTAINS(message, text);
  }
  expect_nothing_at(path);
  EXPECT_EQ(bytes_of(model), before);
}

TEST(ExportEngineModuleTest, RefusesToExportUnsupportedModels) {
  expect_refused(
      [](EmbeddingEngineModule& engine, const Features& features) {
        engine->enqueue(features);
        auto activations = engine->dequeue();
        engine->apply_gradients(activations);
        return activations;
      },
      "[apply_gradients] the forward() of a model that is exported must not "
      "train");
  expect_refused(
      [](EmbeddingEngineModule& engine, const Features&) {
        return engine->dequeue("never");
      },
      "must enqueue the batch 'never' of replica 0 before it dequeues it");
  expect_refused(
      [](EmbeddingEngineModule& engine, const Features& features) {
        return engine->embedding_lookup(
            features, {}, engine->options().features);
      },
      "without a serving_config");
  const auto hidden = std::make_shared<EmbeddingEngine>(make_options());
  expect_refused(
      [hidden](EmbeddingEngineModule&, const Features& features) {
        return hidden->embedding_lookup(features);
      },
      "An EmbeddingEngine must be an EmbeddingEngineModule for that.");
}

TEST(ExportEngineModuleTest, RefusesToExportALookupWithoutRounding) {
  EmbeddingEngineOptions options = make_options();
  options.features = {
      {"user",
       feature_of(
           {.name = "rounded",
            .vocabulary_size = 9,
            .dim = 2,
            .quantization = QuantizationConfig{
                .num_buckets = 5, .lower = -1.0, .upper = 1.0}})}};
  struct ModelImpl : torch::nn::Module {
    explicit ModelImpl(const EmbeddingEngineOptions& options) {
      engine = register_module("engine", EmbeddingEngineModule(options));
    }
    at::Tensor forward(const Features& features) {
      if (is_queued) {
        engine->enqueue(features);
        return engine->dequeue()["user"];
      }
      return engine->embedding_lookup(features)["user"];
    }
    bool is_queued = false;
    EmbeddingEngineModule engine{nullptr};
  };
  const auto model = std::make_shared<ModelImpl>(options);
  const ExportExample example{.features = {{"user", int64s({1, 2})}}};
  EXPECT_RAISES(
      c10::NotImplementedError,
      export_torchscript(model, new_file(), example),
      "[embedding_lookup] a model that is exported must not call "
      "embedding_lookup() for the quantized table 'rounded'. Its rows are "
      "rounded");
  model->is_queued = true;
  const std::string path = new_file();
  export_torchscript(model, path, example);
  auto loaded = torch::jit::load(path);
  model->engine->enqueue(example.features, {}, {.training = false});
  expect_close(
      run_model(loaded, example.features), model->engine->dequeue()["user"]);
}

}  // namespace tessera::test::export_engine_module_test
