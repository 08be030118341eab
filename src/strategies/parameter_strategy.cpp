// SPDX-License-Identifier: Apache-2.0
#include "src/strategies/parameter_strategy.h"

#include <c10/util/Exception.h>

namespace tessera {

ParameterStrategy::ParameterStrategy(std::shared_ptr<EmbeddingState> state)
    : state_(std::move(state)) {
  for (const TableState& table : state_->tables) {
    TORCH_CHECK_VALUE(
        table.config->dtype == at::kFloat,
        "[table '",
        table.name,
        "'] dtype ",
        to_string(table.config->dtype),
        " needs Strategy::engine(): elsewhere an optimizer of LibTorch would "
        "round its steps away. Use kFloat.");
    table.parameters.requires_grad_(table.config->trainable);
  }
}

std::vector<std::pair<std::string, at::Tensor>> ParameterStrategy::
    parameters() {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (size_t i = 0; i < state_->tables.size(); ++i) {
    parameters.emplace_back(
        "table_" + std::to_string(i), state_->tables[i].parameters);
  }
  return parameters;
}

std::vector<at::Tensor> ParameterStrategy::forward(Batch batch) {
  std::vector<at::Tensor> activations;
  for (size_t i = 0; i < batch.bags.size(); ++i) {
    const IdBags& bags = batch.bags[i];
    const TableState& table = state_->tables[state_->features[i].table];
    state_->out_of_range_count += bags.zero_rows;
    const LookupTable rows{table.parameters, buckets_of(*table.config)};
    activations.push_back(
        look_up(rows, bags, batch.weights[i]).view(bags.activation_shape()));
  }
  return activations;
}

}  // namespace tessera
