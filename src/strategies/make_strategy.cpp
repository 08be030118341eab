// SPDX-License-Identifier: Apache-2.0
#include "src/strategies/embedding_strategy.h"
#include "src/table_engine.h"

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
  if (const auto* sharded =
          std::get_if<Strategy::Sharded>(&strategy.options())) {
    return make_sharded_strategy(std::move(state), *sharded, apply);
  }
  const int64_t threads =
      std::get<Strategy::Engine>(strategy.options()).lookup_threads;
  check_lookup_threads(threads, "[Strategy::Engine]");
  auto engine = std::make_shared<TableEngine>(state, threads);
  return make_engine_strategy(std::move(state), std::move(engine), apply);
}

WithSlots slots_under(const Strategy& strategy) {
  return strategy.is_engine() ? WithSlots::kYes : WithSlots::kNo;
}

}  // namespace tessera
