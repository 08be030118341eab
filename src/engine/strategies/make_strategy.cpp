// SPDX-License-Identifier: Apache-2.0
#include "src/common/lookup_worker.h"
#include "src/engine/strategies/embedding_strategy.h"
#include "src/engine/table_store.h"

namespace tessera {

namespace {

std::unique_ptr<EmbeddingStrategy> make(
    const Strategy::Fused& options,
    Apply apply,
    std::shared_ptr<EmbeddingState> state) {
  check_lookup_threads(options.lookup_threads, "[Strategy::Fused]");
  auto store = std::make_shared<TableStore>(state, options.lookup_threads);
  return make_fused_strategy(std::move(state), std::move(store), apply);
}

std::unique_ptr<EmbeddingStrategy> make(
    const Strategy::Host& options,
    Apply /*apply*/,
    std::shared_ptr<EmbeddingState> state) {
  return make_host_strategy(std::move(state), options);
}

std::unique_ptr<EmbeddingStrategy> make(
    const Strategy::Padded& /*options*/,
    Apply /*apply*/,
    std::shared_ptr<EmbeddingState> state) {
  return make_padded_strategy(std::move(state));
}

std::unique_ptr<EmbeddingStrategy> make(
    const Strategy::Sharded& options,
    Apply apply,
    std::shared_ptr<EmbeddingState> state) {
  check_lookup_threads(options.options.lookup_threads, "[ShardingOptions]");
  auto store = options.make_store(options, state);
  return make_fused_strategy(std::move(state), std::move(store), apply);
}

}  // namespace

std::unique_ptr<EmbeddingStrategy> make_strategy(
    const Strategy& strategy,
    Apply apply,
    std::shared_ptr<EmbeddingState> state) {
  return std::visit(
      [&](const auto& options) {
        return make(options, apply, std::move(state));
      },
      strategy.options());
}

WithSlots slots_under(const Strategy& strategy) {
  return strategy.is_fused() ? WithSlots::kYes : WithSlots::kNo;
}

Shards shards_under(const Strategy& strategy) {
  const auto* sharded = std::get_if<Strategy::Sharded>(&strategy.options());
  if (sharded == nullptr) {
    return {};
  }
  return {
      .ranks = sharded->ranks,
      .rows_of = [sharded = *sharded](
                     const std::string& name, const TableConfig& table) {
        return sharded.rows_of(sharded, name, table);
      }};
}

}  // namespace tessera
