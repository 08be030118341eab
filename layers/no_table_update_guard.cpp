// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/no_table_update_guard.h>

#include <tessera/engine/table_module.h>

#include "src/common/check.h"
#include "src/engine/strategies/embedding_strategy.h"

namespace tessera {

NoTableUpdateGuard::NoTableUpdateGuard(const torch::nn::Module* model) {
  TESSERA_CHECK_VALUE(
      model != nullptr,
      "[NoTableUpdateGuard] expected a model, but got an empty holder. Make the model before the guard.");
  model->apply([&](const torch::nn::Module& part) {
    const TableModule* tables = TableModule::of(part);
    if (tables != nullptr && tables->backward_strategy() != nullptr) {
      strategies_.push_back(tables->backward_strategy());
    }
  });
  for (const auto& strategy : strategies_) {
    strategy->disable_updates();
  }
}

NoTableUpdateGuard::~NoTableUpdateGuard() {
  for (const auto& strategy : strategies_) {
    strategy->enable_updates();
  }
}

}  // namespace tessera
