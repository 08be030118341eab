// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/checkpoint_options.h>
#include <tessera/engine/strategy.h>
#include <tessera/optim/optimizer.h>
#include <tessera/tables/embedding_tables.h>

#include "src/common/rank_group.h"
#include "src/engine/gradient_accumulator.h"
#include "src/features/feature_state.h"
#include "src/kernels/storage.h"
#include "src/tables/table_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Whether the tables' own optimizers update them, so that all tables have slots. With
/// kNo, only tables with a slot_creation have slots.
enum class WithSlots { kNo, kYes };

/// What a layer consists of and what it has learnt, for every strategy.
struct EmbeddingState : FeatureSet {
  /// The processes that hold the rows of the tables.
  std::shared_ptr<RankGroup> ranks = make_solo_group();
  /// The number of this layer among those that use `ranks`: 1, 2, ...
  int64_t layer = 0;
  WithSlots with_slots = WithSlots::kYes;
  std::vector<TableState> tables = {};
  /// [tables], gradients that gradient_accumulation_steps has collected in a store.
  std::vector<GradientAccumulator> accumulated = {};
  /// The seed of initial values and of stochastic rounding. A load replaces it by the
  /// saved one, so that rounding continues bit for bit.
  uint64_t seed = 0;
  /// The number of backward passes, or of steps under Apply::kOnStep. Keras and files
  /// call it "iterations". With gradient_accumulation_steps = n, n passes make one update
  /// of a table. Schedules are read at this number.
  int64_t passes = 0;
  AtomicCount out_of_range_count = 0;
  /// The path and checksum of the checkpoint since which TableState::touched counts.
  std::string last_checkpoint = {};
  MissingSlots missing_slots = MissingSlots::kError;
  NonFiniteGradients non_finite_gradients = NonFiniteGradients::kApply;
  /// Whether a load has skipped saved slots because the tables keep no such slots.
  bool has_skipped_slots = false;
};

/// The part of the tables that a process holds.
struct Shards {
  std::shared_ptr<RankGroup> ranks = make_solo_group();
  /// The rows of a table that this process holds. If unset, it holds all rows.
  std::function<LocalRows(const std::string& name, const TableConfig&)>
      rows_of = {};
};

/// Describes features, tables in order of first use, and the rows that this process holds,
/// without allocating the tables.
/// Errors:  as make_state().
EmbeddingState describe_state(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    const std::string& where,
    const Shards& shards = {});

/// Makes tables in order of first use and initialises them. `with_slots` says which
/// tables have slots.
/// Errors:  c10::ValueError for unusable configs, naming feature or table, and with
///          `checks_memory` for tables that do not fit into memory;
///          `where` begins messages about the options as a whole.
EmbeddingState make_state(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    uint64_t seed,
    WithSlots with_slots,
    const std::string& where = "[TPUEmbeddingOptions]",
    const Shards& shards = {},
    bool checks_memory = false);

/// Creates the missing slots of all tables that have an optimizer.
void add_slots(EmbeddingState& state);

/// The number of updates applied so far to this table. The last update of a key is such a
/// number.
int64_t updates_of(const EmbeddingState& state, const TableState& table);

/// How the next update of `table` rounds. It depends only on the layer's seed, the
/// table's name and EmbeddingState::passes.
kernels::Rounding rounding_of(
    const EmbeddingState& state,
    const TableState& table);

/// A copy that shares no tensor with `state`.
EmbeddingState deep_copy(const EmbeddingState& state);

/// The table with this name.
/// Errors:  c10::ValueError beginning with `where`, listing the known names.
TableState& find_table(
    EmbeddingState& state,
    const std::string& name,
    const std::string& where);

/// Checks that this process holds all rows of the tables.
/// Errors:  c10::Error beginning with `where` and ending with `advice`, if there are
///          several ranks.
void check_holds_all_rows(
    const EmbeddingState& state,
    const std::string& where,
    const std::string& advice);

/// Checks that no table has TableConfig::keys.
/// Errors:  c10::NotImplementedError beginning with `where` and ending with `advice`.
void check_has_no_keys(
    const EmbeddingState& state,
    const std::string& where,
    const std::string& advice);

/// A float32 copy of rows [begin, end), from all ranks.
/// Errors:  c10::ValueError or IndexError naming the table.
at::Tensor read_rows(
    EmbeddingState& state,
    const std::string& table,
    int64_t begin,
    int64_t end);

/// Returns the tables as EmbeddingTables. If `are_parameters` is true, they are
/// parameters of a layer, and each entry has its parameter as the `variable`.
EmbeddingTables embedding_tables_of(
    const EmbeddingState& state,
    bool are_parameters);

}  // namespace tessera
