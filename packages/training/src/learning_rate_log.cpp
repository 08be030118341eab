// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/learning_rate_log.h>

#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>

#include "optim/row_update.h"
#include "src/common/check.h"
#include "src/engine/embedding_state.h"

#include <torch/optim/optimizer.h>

#include <utility>

namespace tessera::training {

namespace {

// Calls `visit` for each learning rate, with its name and a function that returns it.
template <class Visit>
void visit_rates(
    const torch::optim::Optimizer* optimizer,
    const TableModules& layers,
    Visit visit) {
  if (optimizer != nullptr) {
    const auto& groups = optimizer->param_groups();
    for (size_t i = 0; i < groups.size(); ++i) {
      visit(
          i == 0 ? "learning_rate" : "learning_rate_" + std::to_string(i),
          [&] { return groups[i].options().get_lr(); });
    }
  }
  for (const auto& layer : layers) {
    TESSERA_CHECK_VALUE(
        layer != nullptr,
        "[learning_rates] expected a layer, but got an empty one. Make the layer first.");
    for (const TableState& table : layer->state().tables) {
      if (table.optimizer) {
        visit(std::string("learning_rate_").append(table.name), [&] {
          int64_t step = 0;
          layer->read_state(
              [&](const EmbeddingState& state) { step = state.passes; });
          return optim::learning_rate_of(*table.optimizer)
              .value(step, "[table '" + shorten(table.name) + "']");
        });
      }
    }
  }
}

Logs rates_of(
    const torch::optim::Optimizer* optimizer,
    const TableModules& layers) {
  Logs rates;
  visit_rates(optimizer, layers, [&](const std::string& name, auto value) {
    TESSERA_CHECK_VALUE(
        rates.find(name) == nullptr,
        "[learning_rates] two learning rates would be named '{}'. Pass the layers one by one, or rename a table.",
        name);
    rates.set(name, value());
  });
  return rates;
}

}  // namespace

Logs learning_rates(
    const torch::optim::Optimizer& optimizer,
    const TableModules& layers) {
  return rates_of(&optimizer, layers);
}

Logs learning_rates(const TableModules& layers) {
  return rates_of(nullptr, layers);
}

LearningRateLog::LearningRateLog(
    torch::optim::Optimizer& optimizer,
    TableModules layers)
    : optimizer_(&optimizer), layers_(std::move(layers)) {
  LearningRateLog::log_names();  // raises an error for empty layers
}

LearningRateLog::LearningRateLog(TableModules layers)
    : layers_(std::move(layers)) {
  LearningRateLog::log_names();
}

std::vector<std::string> LearningRateLog::log_names() const {
  std::vector<std::string> names;
  visit_rates(
      optimizer_, layers_, [&](std::string name, const auto& /*value*/) {
        names.push_back(std::move(name));
      });
  return names;
}

void LearningRateLog::on_epoch_end(Training& training) {
  visit_rates(optimizer_, layers_, [&](const std::string& name, auto value) {
    training.log(name, value());
  });
}

}  // namespace tessera::training
