// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/manifest.h"
#include "serialization/saved_keys.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/embedding_state.h"

#include <tessera/engine/checkpoint_options.h>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// What a load will copy. It is made after everything has been compared.
struct LoadPlan {
  struct Copy {
    size_t table = 0;  // an index of Manifest::tables
    std::string key = {};
    at::Tensor to = {};  // the first local rows of the layer's tensor
    kernels::RowNumbers rows = {};  // their numbers in the whole table
    /// The layer's tensor if it has another dtype. `to` is then other memory.
    at::Tensor converted = {};
  };

  /// Accumulated gradients. The function that carries out the plan reads them.
  struct Accumulated {
    size_t table = 0;  // an index of Manifest::tables
    size_t to = 0;  // an index of EmbeddingState::tables
    AccumulatedGradients gradients = {};
  };

  /// A table that has keys in the layer or in the file. The function that carries out the
  /// plan reads its keys, before it changes anything.
  struct KeyTable {
    size_t table = 0;  // an index of Manifest::tables
    size_t to = 0;  // an index of EmbeddingState::tables
    /// For each slot of the table, its key in the file. Empty: slots are not loaded.
    std::vector<std::string> slots = {};
    /// If true, the file has keys. Otherwise, its row numbers become the keys.
    bool has_saved_keys = false;
    /// If the layer keeps its own number of updates: how much larger this number is than
    /// the saved one. 0 if the layer loads the saved number.
    int64_t later_updates = 0;
    LoadedKeys keys = {};
  };

  /// The slots of a table that are converted after the copies, because at least one of them
  /// is copied from another slot of an older file.
  struct EarlierSlots {
    size_t to = 0;  // an index of EmbeddingState::tables
    std::vector<at::Tensor> slots = {};  // the rows that are copied
  };

  std::vector<Copy> copies = {};
  std::vector<EarlierSlots> earlier_slots = {};
  std::vector<KeyTable> key_tables = {};
  std::vector<Accumulated> accumulated = {};
  /// Indices of EmbeddingState::tables whose rows are replaced. The accumulated gradients
  /// of these tables are dropped.
  std::vector<size_t> tables = {};
  std::optional<int64_t> passes = {};
  std::optional<uint64_t> seed = {};
  bool has_skipped_slots = false;
  /// Quoted names of tables whose accumulated gradients are missing in an older file.
  std::vector<std::string> without_gradients = {};
  /// The function that the user called, for warnings.
  std::string where = {};

  /// Converts rows of another dtype and earlier slots, and changes the rest of the state.
  /// Call this after the copies.
  void finish(EmbeddingState& state) const;
};

/// Compares a layer with what was saved and plans the load. A table without an optimizer,
/// or on the host, takes its rows and skips slots that it does not have. `saved` may also
/// describe an archive. Then its tensors have no parts, and may have any dtype.
/// Errors:  c10::ValueError beginning with `where`, listing `problems` (a line each) and
///          all differences. `state` is not changed.
LoadPlan plan_load(
    const EmbeddingState& state,
    const Manifest& saved,
    const LoadOptions& options,
    const std::string& where,
    std::vector<std::string> problems = {});

}  // namespace tessera
