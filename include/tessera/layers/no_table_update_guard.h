// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <vector>

namespace tessera {

class EmbeddingStrategy;

// snippet: tests/docs/reference_layers_test.cpp NoTableUpdateGuard
/// While a guard exists, backward() does not update the tables of any TPUEmbedding in the
/// model. An EmbeddingEngineModule is not guarded: don't call its apply_gradients() for a
/// loss that must not train it.
///
///   const auto scores = model->forward(features);
///   {
///     const NoTableUpdateGuard guard(model);
///     loss_of(scores).backward();  // no table changes
///   }
///   optimizer.step();  // the dense weights change
///
/// The guard must exist during backward(); forward() does not matter. So one forward pass
/// may serve a loss that updates the tables and another loss that does not. All other
/// gradients are computed as without the guard, also those of feature weights. Under
/// Apply::kOnStep, a guarded pass adds nothing to the gradients that wait for step(). On
/// Strategy::host() and padded(), it leaves the tables' gradients unchanged. There, while
/// the guard exists, don't call step() or zero_grad(false) of an optimizer that holds the
/// tables, nor clip_grad_norm_() of the tables. Such a call raises a c10::Error that names
/// the guard, and no table changes. On a sharded strategy, all ranks must guard the same
/// passes.
///
/// Guards may be nested. A layer is not guarded if it was registered after the guard was
/// made, or if another layer was copied into it after that.
class [[nodiscard]] NoTableUpdateGuard {
 public:
  explicit NoTableUpdateGuard(const torch::nn::Module& model)
      : NoTableUpdateGuard(&model) {}
  template <class Impl>
  explicit NoTableUpdateGuard(const torch::nn::ModuleHolder<Impl>& model)
      : NoTableUpdateGuard(model.is_empty() ? nullptr : model.ptr().get()) {}
  ~NoTableUpdateGuard();

  NoTableUpdateGuard(const NoTableUpdateGuard&) = delete;
  NoTableUpdateGuard& operator=(const NoTableUpdateGuard&) = delete;

 private:
  // Errors:  c10::ValueError for nullptr.
  explicit NoTableUpdateGuard(const torch::nn::Module* model);

  std::vector<std::shared_ptr<EmbeddingStrategy>> strategies_;
};

}  // namespace tessera
