// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/table_module.h>

#include "src/common/rank_group.h"
#include "src/engine/embedding_state.h"

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera::serving {

/// A module with tables, and what its names begin with.
struct Part {
  std::shared_ptr<torch::nn::Module> module;
  std::string prefix;

  TableModule& tables() const {
    return *TableModule::of(*module);
  }
  bool is_sharded() const {
    return tables().strategy().is_sharded();
  }
};

/// Errors:  c10::ValueError for a model without tables.
std::vector<Part> parts_of(torch::nn::Module& model);

/// The ranks of the sharded tables, or this process alone.
/// Errors:  c10::NotImplementedError if parts are spread over different processes.
std::shared_ptr<RankGroup> ranks_of(const std::vector<Part>& parts);

/// Calls `use(states)` while no thread changes the tables of any part.
template <class Use>
void with_states(
    const std::vector<Part>& parts,
    std::vector<EmbeddingState*>& states,
    Use& use) {
  if (states.size() == parts.size()) {
    use(states);
    return;
  }
  parts[states.size()].tables().change_state([&](EmbeddingState& state) {
    states.push_back(&state);
    with_states(parts, states, use);
  });
}
template <class Use>
void with_states(const std::vector<Part>& parts, Use use) {
  std::vector<EmbeddingState*> states;
  with_states(parts, states, use);
}

}  // namespace tessera::serving
