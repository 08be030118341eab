// SPDX-License-Identifier: Apache-2.0
#include "src/engine/operator_lookup.h"
#include "src/engine/strategies/parameter_strategy.h"

namespace tessera {

namespace {

class HostStrategy : public ParameterStrategy {
 public:
  HostStrategy(std::shared_ptr<EmbeddingState> state, Strategy::Host options)
      : ParameterStrategy(std::move(state), options.sparse_gradients),
        options_(options) {}

 private:
  at::Tensor lookup(
      const LookupTable& table,
      const IdBags& bags,
      const at::Tensor& weights) const override {
    return lookup_by_operators(table, bags, weights, options_.sparse_gradients);
  }

  Strategy::Host options_;
};

}  // namespace

std::unique_ptr<EmbeddingStrategy> make_host_strategy(
    std::shared_ptr<EmbeddingState> state,
    Strategy::Host options) {
  return std::make_unique<HostStrategy>(std::move(state), options);
}

}  // namespace tessera
