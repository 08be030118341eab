// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/embedding_engine.h>
#include <tessera/layers/layer_holder.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include <iosfwd>
#include <memory>
#include <optional>

namespace tessera {

// snippet: tests/docs/reference_layers_test.cpp EmbeddingEngineModuleImpl
/// An EmbeddingEngine as a submodule of a model. It is saved, loaded, cloned and
/// exported with the model.
///
///   EmbeddingEngineModule engine(EmbeddingEngineOptions{
///       .features = {{"user", FeatureConfig{.table = users}}},
///       .optimizer = optim::Adagrad{.learning_rate = 0.05}});
///   model->register_module("engine", engine);  // is saved with the model
///   engine->enqueue({{"user", user_ids}});
///   const auto activations = engine->dequeue();
///
/// parameters() does not contain the tables, because apply_gradients() trains them. An
/// optimizer of the model's parameters() therefore trains the dense weights only.
/// train() and eval() change nothing.
///
/// TPUEmbedding and this module load each other's archives and checkpoints. Batches in
/// flight are neither saved nor cloned. export_torchscript() supports models whose
/// forward() calls embedding_lookup(), or enqueue() and dequeue().
///
/// It is thread safe, as EmbeddingEngine is, with one exception: no thread may train the
/// engine while clone() or an export of the model runs.
class EmbeddingEngineModuleImpl : public torch::nn::Module,
                                  public EmbeddingEngine {
 public:
  using Options = EmbeddingEngineOptions;

  /// Errors:  c10::ValueError for unusable options, naming the table or the feature.
  explicit EmbeddingEngineModuleImpl(EmbeddingEngineOptions options);

  void pretty_print(std::ostream& stream) const override;

  /// A deep copy of tables, slots, step counter and output shapes, without the batches in
  /// flight. It stays on the CPU; `device` has no effect.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Changes nothing, so that a model's to() converts only its other modules.
  /// Activations stay float32 on the CPU. A model that computes in another dtype or on
  /// another device converts them itself.
  void to(torch::Device, torch::Dtype, bool = false) override {}
  void to(torch::Dtype, bool = false) override {}
  void to(torch::Device, bool = false) override {}

  using TableModule::load;
  void load(torch::serialize::InputArchive& archive) override {
    TableModule::load(archive);
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    TableModule::save(archive);
  }

 private:
  EmbeddingEngineModuleImpl(const EmbeddingEngineModuleImpl& source, Copy);

  void clone_(
      torch::nn::Module& other,
      const std::optional<torch::Device>& device) override;
};

using EmbeddingEngineModule = LayerHolder<EmbeddingEngineModuleImpl>;

}  // namespace tessera
