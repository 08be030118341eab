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
  return make_engine_strategy(std::move(state), apply);
}

WithSlots slots_under(const Strategy& strategy) {
  return std::holds_alternative<Strategy::Engine>(strategy.options())
      ? WithSlots::kYes
      : WithSlots::kNo;
}

}  // namespace tessera
