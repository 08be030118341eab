// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/lookup.h"
#include "src/engine/strategies/embedding_strategy.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Tables as ordinary parameters. Autograd computes their gradients, and a torch::optim
/// updates them. As on Strategy::fused(), a feature that is not in the loss gets a
/// gradient of zeros if another feature of the same forward pass is.
class ParameterStrategy : public EmbeddingStrategy {
 public:
  /// `sparse_gradients`: whether lookup() gives the tables sparse gradients.
  /// Errors:  c10::ValueError for a 16-bit table; c10::NotImplementedError for a key table.
  ParameterStrategy(
      std::shared_ptr<EmbeddingState> state,
      bool sparse_gradients);

  std::vector<std::pair<std::string, at::Tensor>> parameters() override;
  std::vector<at::Tensor> forward(Batch batch) override;
  std::shared_ptr<GradientRows> gradient_rows(size_t table) override;

 private:
  void set_updates_enabled(bool are_enabled) override;
  /// The tables, whose gradients pass through nodes that can stop them.
  std::vector<at::Tensor> tables_for_lookup() const;

  /// Looks up one feature with stock operators and returns its activation [bags, dim].
  /// `weights` has one weight per value of the caller, or is undefined.
  virtual at::Tensor lookup(
      const LookupTable& table,
      const IdBags& bags,
      const at::Tensor& weights) const = 0;

  std::shared_ptr<EmbeddingState> state_;
  // [tables], nullptr if gradients are sparse. Passes without updates mark no rows.
  std::vector<std::shared_ptr<GradientRows>> gradient_rows_;
  std::shared_ptr<std::atomic<bool>> are_updates_enabled_ =
      std::make_shared<std::atomic<bool>>(true);
  // [tables] while updates are not allowed: what the tables have instead of gradients,
  // and their gradients.
  std::vector<at::Tensor> guards_;
  std::vector<at::Tensor> kept_gradients_;
};

}  // namespace tessera
