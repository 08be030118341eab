// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/learning_rate_log.h>

#include "src/embedding_state.h"

#include <torch/optim/optimizer.h>

#include <c10/util/Exception.h>

#include <variant>

namespace tessera {

LearningRateLog::LearningRateLog(
    torch::optim::Optimizer& optimizer,
    std::vector<TPUEmbedding> layers)
    : optimizer_(&optimizer) {
  add(layers);
}

LearningRateLog::LearningRateLog(std::vector<TPUEmbedding> layers) {
  add(layers);
}

void LearningRateLog::add(const std::vector<TPUEmbedding>& layers) {
  for (const TPUEmbedding& layer : layers) {
    TORCH_CHECK_VALUE(
        !layer.is_empty(),
        "[LearningRateLog] expected a layer, but got an empty one.");
    const TPUEmbeddingOptions& options = layer->options();
    const EmbeddingState state = describe_state(
        options.features, options.optimizer, "[LearningRateLog]");
    for (const TableState& table : state.tables) {
      if (table.optimizer) {
        std::visit(
            [&](const auto& optimizer) {
              tables_.push_back({table.name, optimizer.learning_rate, layer});
            },
            *table.optimizer);
      }
    }
  }
}

std::vector<std::pair<std::string, double>> LearningRateLog::dense_rates()
    const {
  std::vector<std::pair<std::string, double>> rates;
  if (optimizer_ != nullptr) {
    for (const auto& group : optimizer_->param_groups()) {
      const std::string name = rates.empty()
          ? "learning_rate"
          : "learning_rate_" + std::to_string(rates.size());
      rates.emplace_back(name, group.options().get_lr());
    }
  }
  return rates;
}

std::vector<std::string> LearningRateLog::log_names() const {
  std::vector<std::string> names;
  for (const auto& [name, rate] : dense_rates()) {
    names.push_back(name);
  }
  for (const Table& table : tables_) {
    names.push_back(std::string("learning_rate_").append(table.name));
  }
  return names;
}

void LearningRateLog::on_epoch_end(Training& training) {
  for (const auto& [name, rate] : dense_rates()) {
    training.log(name, rate);
  }
  for (const Table& table : tables_) {
    training.log(
        std::string("learning_rate_").append(table.name),
        table.rate.value(
            table.layer->iterations(), "[table '" + table.name + "']"));
  }
}

}  // namespace tessera
