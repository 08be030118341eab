// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/accumulated_gradients.h"
#include "src/engine/embedding_state.h"

#include <tessera/engine/checkpoint_options.h>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// What an archive or a checkpoint says that it holds.
struct SavedTensor {
  std::string key = {};  // `parameters`, or optim::slot_key()
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape = {};
};

struct SavedTable {
  std::string name = {};
  std::optional<std::string> optimizer = {};
  std::vector<SavedTensor> tensors = {};
  /// gradient_accumulation_steps, where collected gradients were saved; otherwise 0.
  int64_t accumulation_steps = 0;
};

struct SavedState {
  int64_t iterations = 0;
  /// Unset in files that were written before the seed was saved.
  std::optional<uint64_t> seed = {};
  std::vector<SavedTable> tables = {};
};

/// What a load copies, after everything has been compared.
struct LoadPlan {
  struct Copy {
    size_t table = 0;  // of SavedState::tables
    std::string key = {};
    at::Tensor to = {};  // the first local rows of the layer's tensor
    kernels::RowNumbers rows = {};  // which these are
  };

  /// Collected gradients. Whoever carries out the plan reads them.
  struct Accumulated {
    size_t table = 0;  // an index of SavedState::tables
    size_t to = 0;  // an index of EmbeddingState::tables
    AccumulatedGradients gradients = {};
  };

  std::vector<Copy> copies = {};
  std::vector<Accumulated> accumulated = {};
  /// Indices of EmbeddingState::tables whose rows are replaced. Gradients that these
  /// tables have collected are dropped.
  std::vector<size_t> tables = {};
  std::optional<int64_t> iterations = {};
  std::optional<uint64_t> seed = {};
  bool has_skipped_slots = false;
  /// Quoted names of the tables whose collected gradients are missing in an older file.
  std::vector<std::string> without_gradients = {};

  /// After the copies: what else becomes of the state.
  void finish(EmbeddingState& state) const;
};

/// A table without optimizer, or on the host, takes its rows and skips slots that
/// it does not have.
/// Errors:  c10::ValueError beginning with `where`, listing `problems` (a line
///          each) and all differences; `state` is not changed.
LoadPlan plan_load(
    const EmbeddingState& state,
    const SavedState& saved,
    const LoadOptions& options,
    const std::string& where,
    std::vector<std::string> problems = {});

}  // namespace tessera
