// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/storage.h"

#include <tessera/embedding_tables.h>
#include <tessera/feature_config.h>
#include <tessera/optim/optimizer.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// A tensor that an optimizer keeps beside a table.
struct Slot {
  std::string name = {};
  at::Tensor values = {};  // [vocab, dim], or [vocab] with one number per row
  /// Its index in kernels::UpdateArgs::slots.
  size_t position = 0;
};

/// One table with what has been learnt.
struct TableState {
  TablePtr config = {};
  /// The config's name, or `table_{i}`.
  std::string name = {};
  /// The table's own or the layer's; empty when it can't be trained.
  std::optional<optim::OptimizerSpec> optimizer = {};
  at::Tensor parameters = {};  // [vocab, dim]
  std::vector<Slot> slots = {};
};

/// One feature: its path in the nest, its config, the table it reads.
struct FeatureState {
  std::string path = {};
  FeatureConfig config = {};
  size_t table = 0;
};

/// Whether the strategy updates tables by their own optimizers, and so keeps
/// their slots.
enum class WithSlots { kNo, kYes };

/// What a layer consists of and what it has learnt, for every strategy.
struct EmbeddingState {
  WithSlots with_slots = WithSlots::kYes;
  std::vector<FeatureState> features = {};
  std::vector<TableState> tables = {};
  /// Not in checkpoints: updates that round at random go on bit for bit only
  /// in a layer of the same seed.
  uint64_t seed = 0;
  int64_t iterations = 0;
  int64_t out_of_range_count = 0;
  /// A load has left slots of the archive out, for want of a place.
  bool has_skipped_slots = false;
};

/// Tables in order of first use, initialised, with their slots.
/// Errors:  c10::ValueError for unusable configs, naming feature or table.
EmbeddingState make_state(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    uint64_t seed,
    WithSlots with_slots);

/// The initial values of `table`'s rows.
/// Errors:  c10::ValueError for values that its dtype can't hold, or from a
///          Callable.
void fill_rows(TableState& table, uint64_t seed);

/// Creates the slots of all tables that have an optimizer, unless there are.
/// Errors:  c10::ValueError from a slot_creation.
void add_slots(EmbeddingState& state);

/// How the coming update of `table` rounds: a function of the layer's seed, the
/// table's name and the number of updates so far.
kernels::Rounding rounding_of(
    const EmbeddingState& state,
    const TableState& table);

/// A copy that shares no tensor with `state`.
EmbeddingState deep_copy(const EmbeddingState& state);

EmbeddingTables embedding_tables_of(const EmbeddingState& state);

}  // namespace tessera
