// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/update_check.h"

#include <tessera/common/shorten.h>
#include <tessera/engine/embedding_engine.h>

#include "src/engine/embedding_state.h"
#include "src/engine/engine_access.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tessera::training {

namespace {

bool has_table_to_train(const EmbeddingEngine& engine) {
  const auto& tables = static_cast<const TableModule&>(engine).state().tables;
  return std::any_of(tables.begin(), tables.end(), [](const TableState& table) {
    return table.config->trainable && table.optimizer;
  });
}

const EmbeddingEngine& engine_of(const torch::nn::Module& module) {
  return dynamic_cast<const EmbeddingEngine&>(module);
}

void warn(const std::string& name) {
  TORCH_WARN(fmt::format(
      "[fit] the step has dequeued a training batch of {}, but did not pass "
      "its gradients on, so the tables do not learn. Call apply_gradients() "
      "after backward() in each step. If the batch is not to train the "
      "tables, enqueue it with training = false. "
      "FitOptions::movement_warning switches this warning off.",
      name.empty() ? std::string("the engine")
                   : fmt::format("'{}'", shorten(name))));
}

}  // namespace

void UpdateCheck::begin(const torch::nn::Module& model) {
  for (const auto& part : model.named_modules()) {
    const auto* engine =
        dynamic_cast<const EmbeddingEngine*>(part.value().get());
    if (engine != nullptr && has_table_to_train(*engine)) {
      engines_.push_back(
          {.engine = part.value(),
           .name = part.key(),
           .updates = engine->iterations()});
    }
  }
}

void UpdateCheck::check_engines() {
  std::erase_if(engines_, [](Watched& watched) {
    const EmbeddingEngine& engine = engine_of(*watched.engine);
    if (engine.iterations() != watched.updates) {
      return true;
    }
    const bool has_waited = std::exchange(
        watched.is_waiting, EngineAccess::has_batch_without_gradients(engine));
    const bool is_forgotten = has_waited && watched.is_waiting;
    if (is_forgotten) {
      warn(watched.name);
    }
    return is_forgotten;
  });
}

}  // namespace tessera::training
