// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/checkpoint_options.h>
#include <tessera/embedding_engine.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

namespace tessera {

/// An EmbeddingEngine as a part of a model, which saves, loads, clones and exports
/// with it.
///
///   struct RankerImpl : torch::nn::Module {
///     RankerImpl() {
///       engine = register_module(
///           "engine", EmbeddingEngineModule(EmbeddingEngineOptions{...}));
///       tower = register_module("tower", torch::nn::Linear(32, 1));
///     }
///     ...
///   };
///   model->engine->enqueue({{"user", ids}});
///   auto activations = model->engine->dequeue();
///
/// parameters() has none of its tables, which apply_gradients() trains, so an
/// optimizer of the model's parameters() is for the dense weights alone; train()
/// and eval() change nothing.
///
/// Archives and checkpoints are those of a TPUEmbedding: either loads the other's.
/// Batches in flight are no part of them, nor of a clone. In a model that
/// export_torchscript() writes, forward() calls embedding_lookup(), or enqueue()
/// and dequeue().
///
/// Thread safe as the engine; clone(), and an export of a model that holds it, want
/// an engine that nobody trains meanwhile.
class EmbeddingEngineModuleImpl : public torch::nn::Module,
                                  public EmbeddingEngine {
 public:
  /// Errors:  c10::ValueError for unusable options, naming table or feature.
  explicit EmbeddingEngineModuleImpl(EmbeddingEngineOptions options);

  /// A readable table: name, rows, dim, optimizer, slots, memory.
  std::string summary() const;
  void pretty_print(std::ostream& stream) const override;

  /// A deep copy: tables, slots, step counter and output shapes; no batches. It
  /// stays on the CPU, whatever the device.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Changes nothing: activations stay float32 on the CPU, and a model that
  /// computes in another dtype or on another device converts them. So a model's
  /// to() converts its other modules.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false)
      override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  /// As EmbeddingEngine.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  void load(
      torch::serialize::InputArchive& archive,
      const LoadOptions& options);

 private:
  EmbeddingEngineModuleImpl(const EmbeddingEngineModuleImpl& source, Copy);

  void clone_(
      torch::nn::Module& other,
      const std::optional<torch::Device>& device) override;
};

TORCH_MODULE(EmbeddingEngineModule);

}  // namespace tessera
