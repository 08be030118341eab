// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/layer_optimizer.h>

#include <tessera/common/shorten.h>

#include "optim/spec_optimizer.h"
#include "src/common/check.h"
#include "src/engine/embedding_state.h"
#include "src/engine/strategies/embedding_strategy.h"

#include <ATen/core/functional.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace tessera {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const TPUEmbedding& layer) {
  TESSERA_CHECK_VALUE(
      !layer.is_empty(),
      "[make_optimizer] expected a layer, but got an empty holder. Make the layer before its optimizer.");
  const Strategy& strategy = layer->options().strategy;
  TESSERA_CHECK_VALUE(
      !strategy.is_fused(),
      "[make_optimizer] expected a layer on Strategy::host() or padded(), but got one on {}(). Such a layer needs no optimizer: backward() or the step() of a Combined updates its tables.",
      strategy.name());
  const std::shared_ptr<EmbeddingState> state = layer->state_;
  TESSERA_CHECK_VALUE(
      std::ranges::any_of(
          state->tables,
          [](const TableState& table) { return table.optimizer.has_value(); }),
      "[make_optimizer] no table of the layer has an optimizer. Set TPUEmbeddingOptions::optimizer or TableConfig::optimizer.");
  for (const TableState& table : state->tables) {
    if (table.optimizer) {
      optim::check_without_fused(
          *table.optimizer, "[table '" + shorten(table.name) + "']");
    }
  }
  TESSERA_CHECK_VALUE(
      !state->has_skipped_slots,
      "[make_optimizer] the layer had no place for slots when it was loaded, so the saved slots were skipped. Make the optimizer first, then load.");
  add_slots(*state);
  std::vector<optim::SpecOptimizer::BoundParameter> tables;
  for (size_t i = 0; i < state->tables.size(); ++i) {
    TableState& table = state->tables[i];
    if (!table.optimizer) {
      continue;
    }
    if (table.gradient_sum == nullptr) {
      table.gradient_sum = std::make_shared<at::Tensor>();
    }
    optim::SpecOptimizer::BoundParameter bound{
        .spec = *table.optimizer,
        .parameter = table.parameters,
        .slots = c10::fmap(
            table.slots, [](const Slot& slot) { return slot.values; }),
        .sum = table.gradient_sum,
        .where = "[table '" + shorten(table.name) + "']"};
    bound.touched_rows = layer->strategy_->touched_rows(i);
    tables.push_back(std::move(bound));
  }
  return std::make_unique<optim::SpecOptimizer>(
      tables, std::shared_ptr<int64_t>(state, &state->passes));
}

}  // namespace tessera
