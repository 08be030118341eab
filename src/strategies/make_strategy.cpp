// SPDX-License-Identifier: Apache-2.0
#include "src/strategies/embedding_strategy.h"

namespace tessera {

std::unique_ptr<EmbeddingStrategy> make_strategy(
    const Strategy& strategy,
    Apply apply,
    std::shared_ptr<EmbeddingState> state) {
  if (const auto* host = std::get_if<Strategy::Host>(&strategy.options())) {
    return make_host_strategy(std::move(state), *host);
  }
  if (std::holds_alternative<Strategy::Dense>(strategy.options())) {
    return make_dense_strategy(std::move(state));
  }
  return make_engine_strategy(
      std::move(state), std::get<Strategy::Engine>(strategy.options()), apply);
}

WithSlots slots_under(const Strategy& strategy) {
  return strategy.is_engine() ? WithSlots::kYes : WithSlots::kNo;
}

}  // namespace tessera
