// SPDX-License-Identifier: Apache-2.0
// An EmbeddingEngine as a module of a model.
#include <tessera/layers/dense_parameters.h>
#include <tessera/layers/embedding_engine_module.h>
#include <tessera/layers/export_torchscript.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/training/checkpoint.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/optim/optimizers/adam.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include "tests/layers/export_test_util.h"
#include "tests/layers/layer_test_util.h"
#include "tests/temporary_folder.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

namespace tessera {
namespace embedding_engine_module_test {

using test::int64s;
using test::ragged;
using test::TemporaryFolder;

Nest<FeatureConfig> make_features() {
  const auto table = [](const char* name, int64_t rows) {
    return FeatureConfig{
        .table = make_table({.name = name, .vocabulary_size = rows, .dim = 2})};
  };
  return {{"user", table("users", 9)}, {"item", table("items", 7)}};
}

EmbeddingEngineOptions make_options(uint64_t seed = 0) {
  return {
      .features = make_features(),
      .optimizer = optim::Adagrad{.learning_rate = 0.5},
      .seed = seed};
}

Features batch(int64_t step = 0) {
  return {
      {"user", int64s({step % 9, 3, 4})},
      {"item", ragged({{step % 7, 2}, {}, {5, 5, 1}})}};
}

struct RankerImpl : torch::nn::Cloneable<RankerImpl> {
  using Forward = std::function<Nest<at::Tensor>(
      EmbeddingEngineModule& engine,
      const Features& features)>;

  explicit RankerImpl(uint64_t seed = 0, Forward lookup = {})
      : seed_(seed), lookup_(std::move(lookup)) {
    RankerImpl::reset();
  }
  void reset() override {
    engine =
        register_module("engine", EmbeddingEngineModule(make_options(seed_)));
    torch::manual_seed(seed_);
    tower = register_module("tower", torch::nn::Linear(4, 1));
  }

  at::Tensor score(const Nest<at::Tensor>& activations) {
    return tower->forward(
        at::cat({activations["user"], activations["item"]}, 1));
  }
  at::Tensor forward(const Features& features) {
    return score(
        lookup_ ? lookup_(engine, features)
                : engine->embedding_lookup(features));
  }

  uint64_t seed_;
  Forward lookup_;
  EmbeddingEngineModule engine{nullptr};
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(Ranker);

void train(EmbeddingEngine& engine, int64_t begin, int64_t end) {
  for (int64_t step = begin; step < end; ++step) {
    engine.enqueue(batch(step));
    const auto activations = engine.dequeue();
    const at::Tensor gradient =
        at::full_like(activations["user"], 0.25 + static_cast<double>(step));
    engine.apply_gradients({{"user", gradient}, {"item", gradient}});
  }
}

template <class Holder>
std::string bytes_of(const Holder& holder) {
  std::ostringstream stream;
  torch::save(holder, stream);
  return std::move(stream).str();
}

template <class Holder>
void load_bytes(Holder& holder, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::load(holder, stream);
}

TEST(EmbeddingEngineModuleTest, SavesAndLoadsWithAModel) {
  Ranker model(1), loaded(2);
  train(*model->engine, 0, 3);
  const std::string bytes = bytes_of(model);
  EXPECT_NE(bytes_of(loaded), bytes);
  load_bytes(loaded, bytes);
  EXPECT_EQ(bytes_of(loaded), bytes);
  EXPECT_EQ(loaded->engine->iterations(), 3);
  EXPECT_TRUE(at::equal(loaded->forward(batch()), model->forward(batch())));
  train(*model->engine, 3, 5);
  train(*loaded->engine, 3, 5);
  EXPECT_EQ(bytes_of(loaded), bytes_of(model));
}

TEST(EmbeddingEngineModuleTest, ExchangesArchivesWithALayer) {
  EmbeddingEngineModule engine(make_options());
  train(*engine, 0, 3);
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = make_features(),
      .optimizer = optim::Adagrad{.learning_rate = 0.5},
      .seed = 5});
  load_bytes(layer, bytes_of(engine));
  EXPECT_EQ(layer->iterations(), 3);
  layer->forward(batch(1))["user"].sum().backward();
  load_bytes(engine, bytes_of(layer));
  EXPECT_EQ(engine->iterations(), 4);
  for (const char* table : {"users", "items"}) {
    EXPECT_TRUE(at::equal(
        engine->embedding_tables()[table], layer->embedding_tables()[table]));
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
  EXPECT_TRUE(at::equal(
      engine->embedding_tables()["users"], other->embedding_tables()["users"]));
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
  EXPECT_NE(text.find("users"), std::string::npos) << text;
  EXPECT_NE(text.find("accumulators"), std::string::npos) << text;
}

TEST(EmbeddingEngineModuleTest, SaveWeightsStoresItsTables) {
  const TemporaryFolder folder;
  Ranker model(1), loaded(2);
  train(*model->engine, 0, 2);
  training::save_weights(*model, folder / "run");
  train(*model->engine, 2, 3);
  training::save_weights(*model, folder / "run");
  EXPECT_TRUE(training::has_weights(*loaded, folder / "run"));
  training::load_weights(*loaded, folder / "run");
  EXPECT_EQ(bytes_of(loaded), bytes_of(model));
}

// Returns the result of an exported model.
at::Tensor run_model(torch::jit::Module& loaded, const Features& features) {
  const at::NoGradGuard no_grad;
  return loaded.forward({test::to_dict(test::all_parts_of(features))})
      .toTensor();
}

TEST(EmbeddingEngineModuleTest, IsExportedAlone) {
  EmbeddingEngineModule engine(make_options());
  train(*engine, 0, 2);
  const std::string path = test::new_file();
  export_torchscript(*engine, path);
  auto loaded = torch::jit::load(path);
  const auto actual = test::run_embedding(loaded, test::all_parts_of(batch(3)));
  const auto expected = engine->embedding_lookup(batch(3));
  test::expect_close(actual.at("user"), expected["user"]);
  test::expect_close(actual.at("item"), expected["item"]);
  train(*engine, 2, 3);  // the engine still trains

  EmbeddingEngine plain(make_options());
  export_torchscript(plain, path, {.features = {"user"}});
  loaded = torch::jit::load(path);
  EXPECT_EQ(
      test::run_embedding(loaded, {{"user", test::parts_of(batch()["user"])}})
          .size(),
      1U);
}

TEST(EmbeddingEngineModuleTest, IsExportedWithinAModel) {
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
    const std::string path = test::new_file();
    export_torchscript(model, path, {.features = batch()});
    EXPECT_EQ(bytes_of(model), before);
    auto loaded = torch::jit::load(path);
    for (int64_t step = 0; step < 3; ++step) {
      const at::Tensor expected =
          model->score(model->engine->embedding_lookup(batch(step)));
      test::expect_close(run_model(loaded, batch(step)), expected.detach());
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
  const std::string path = test::new_file();
  try {
    export_torchscript(model, path, {.features = batch()});
    ADD_FAILURE() << "no error: " << text;
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find(text), std::string::npos) << message;
  }
  test::expect_nothing_at(path);
  EXPECT_EQ(bytes_of(model), before);
}

TEST(EmbeddingEngineModuleTest, RefusesToExportUnsupportedModels) {
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

TEST(EmbeddingEngineModuleTest, RefusesToExportALookupWithoutRounding) {
  EmbeddingEngineOptions options = make_options();
  options.features = {
      {"user",
       FeatureConfig{
           .table = make_table(
               {.name = "rounded",
                .vocabulary_size = 9,
                .dim = 2,
                .quantization = QuantizationConfig{
                    .num_buckets = 5, .lower = -1.0, .upper = 1.0}})}}};
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
      export_torchscript(model, test::new_file(), example),
      "[embedding_lookup] a model that is exported must not call "
      "embedding_lookup() for the quantized table 'rounded'. Its rows are "
      "rounded");
  model->is_queued = true;
  const std::string path = test::new_file();
  export_torchscript(model, path, example);
  auto loaded = torch::jit::load(path);
  model->engine->enqueue(example.features, {}, {.training = false});
  test::expect_close(
      run_model(loaded, example.features), model->engine->dequeue()["user"]);
}

}  // namespace embedding_engine_module_test
}  // namespace tessera
