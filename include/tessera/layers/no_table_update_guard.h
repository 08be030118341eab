// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <vector>

namespace tessera {

class EmbeddingStrategy;

/// While one lives, backward() leaves the tables of every TPUEmbedding in a model
/// as they are.
///
///   const auto generated = discriminator->forward(generator->forward(noise));
///   {
///     NoTableUpdateGuard guard(discriminator);
///     generator_loss(generated).backward();  // updates the generator's tables
///   }
///
/// What counts is whether the guard lives during backward(), not during forward():
/// one forward may serve a loss that updates the tables and another one that does
/// not. Gradients pass through as without the guard, also to weights of features.
/// Under Apply::kOnStep such a pass adds nothing to what waits for step(). On
/// Strategy::host() and dense() it leaves the tables' gradients as they were: do
/// not step or zero them meanwhile. On shards, all ranks guard the same passes.
///
/// Guards may be nested. A layer that is registered, or copied into, later is not
/// guarded.
class NoTableUpdateGuard {
 public:
  explicit NoTableUpdateGuard(const torch::nn::Module& model);
  template <class Impl>
  explicit NoTableUpdateGuard(const torch::nn::ModuleHolder<Impl>& model)
      : NoTableUpdateGuard(static_cast<const torch::nn::Module&>(*model)) {}
  ~NoTableUpdateGuard();

  NoTableUpdateGuard(const NoTableUpdateGuard&) = delete;
  NoTableUpdateGuard& operator=(const NoTableUpdateGuard&) = delete;

 private:
  std::vector<std::shared_ptr<EmbeddingStrategy>> strategies_;
};

}  // namespace tessera
