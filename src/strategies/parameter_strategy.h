// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/lookup.h"
#include "src/strategies/embedding_strategy.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Tables as ordinary parameters: autograd gives their gradients, a
/// torch::optim updates them.
class ParameterStrategy : public EmbeddingStrategy {
 public:
  /// Errors:  c10::ValueError for a table of 16 bits.
  explicit ParameterStrategy(std::shared_ptr<EmbeddingState> state);

  std::vector<std::pair<std::string, at::Tensor>> parameters() override;
  std::vector<at::Tensor> forward(Batch batch) override;

 private:
  /// The activation [bags, dim] by stock operators. `weights`: of the caller's
  /// values, or undefined.
  virtual at::Tensor look_up(
      const LookupTable& table,
      const IdBags& bags,
      const at::Tensor& weights) const = 0;

  std::shared_ptr<EmbeddingState> state_;
};

}  // namespace tessera
