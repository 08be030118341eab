// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/atomic_count.h"
#include "src/gradient_pile.h"
#include "src/kernels/kernels.h"
#include "src/kernels/storage.h"
#include "src/local_rows.h"
#include "src/rank_group.h"
#include "src/touched_rows.h"

#include <tessera/checkpoint_options.h>
#include <tessera/embedding_tables.h>
#include <tessera/feature_config.h>
#include <tessera/optim/optimizer.h>
#include <tessera/partial_shape.h>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// A tensor that an optimizer keeps beside a table.
struct Slot {
  std::string name = {};
  at::Tensor values = {};  // [rows, dim], or [rows] with one number per row
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
  /// On shards, a part of the table; elsewhere all of it.
  LocalRows rows = {};
  at::Tensor parameters = {};  // [rows.count, dim]
  std::vector<Slot> slots = {};
  /// The local rows that have changed since the last checkpoint; nullopt unless
  /// checkpoints are incremental.
  std::optional<TouchedRows> touched = {};
  /// The gradients that gradient_accumulation_steps has collected on an engine.
  GradientPile pile = {};
  /// The same for an optimizer on the host, which shares this tensor; nullptr without
  /// such an optimizer.
  std::shared_ptr<at::Tensor> gradient_sum = {};
};

/// One feature: its path in the nest, its config, the table it reads.
struct FeatureState {
  std::string path = {};
  FeatureConfig config = {};
  size_t table = 0;
  /// What is known of the activation's shape, without dim.
  std::optional<PartialShape> output_shape = {};
  /// Whether a batch must agree with it.
  bool verifies_shape = true;
  /// The number of rows of every ragged batch, if the output_shape is fully known. The
  /// first batch fixes it, so that the size of a batch never decides whether a row is a
  /// bag or a sequence. -1 before the first batch.
  AtomicCount ragged_rows = -1;
};

/// Whether the tables' own optimizers update them, so that all tables have slots. With
/// kNo, only tables with a slot_creation have slots.
enum class WithSlots { kNo, kYes };

/// What a layer consists of and what it has learnt, for every strategy.
struct EmbeddingState {
  /// Who has the other rows of the tables.
  std::shared_ptr<RankGroup> ranks = std::make_shared<RankGroup>();
  /// Among those of `ranks`: 1, 2, ...
  int64_t layer = 0;
  WithSlots with_slots = WithSlots::kYes;
  /// Output shapes are known, but for some of the first dimensions.
  bool is_built = false;
  /// Whether all features of all batches have one first dimension.
  bool fixed_batch_size = false;
  std::vector<FeatureState> features = {};
  std::vector<TableState> tables = {};
  /// The seed of initial values and of stochastic rounding. A load replaces it by the
  /// saved one, so that rounding continues bit for bit.
  uint64_t seed = 0;
  /// The number of passes, as Keras counts them. With gradient_accumulation_steps = n,
  /// n passes make one update of a table. Schedules are read at this number.
  int64_t iterations = 0;
  AtomicCount out_of_range_count = 0;
  /// What TableState::touched counts from: path and checksum of a checkpoint.
  std::string last_checkpoint = {};
  MissingSlots missing_slots = MissingSlots::kError;
  /// A load has left slots of the archive out, for want of a place.
  bool has_skipped_slots = false;
};

/// One entry per feature config, in order; `table_of` gives FeatureState::table.
/// Errors:  c10::ValueError for unusable configs, naming the feature.
std::vector<FeatureState> feature_states(
    const Nest<FeatureConfig>& features,
    c10::function_ref<size_t(const FeatureState&)> table_of);

/// What part of the tables a process holds.
struct Shards {
  std::shared_ptr<RankGroup> ranks = std::make_shared<RankGroup>();
  /// By a table's name; unset: all rows.
  std::function<LocalRows(const std::string& name, const TableConfig&)>
      rows_of = {};
};

/// Features and tables, in order of first use, without their memory.
/// Errors:  as make_state().
EmbeddingState describe_state(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    const std::string& where);

/// Makes tables in order of first use and initialises them. `with_slots` says which
/// tables have slots.
/// Errors:  c10::ValueError for unusable configs, naming feature or table;
///          `where` begins what concerns the options as a whole.
EmbeddingState make_state(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    uint64_t seed,
    WithSlots with_slots,
    const std::string& where = "[TPUEmbeddingOptions]",
    const Shards& shards = {});

/// The initial values of `table`'s local rows.
/// Errors:  c10::ValueError for values that its dtype can't hold, or from a
///          Callable.
void fill_rows(TableState& table, uint64_t seed);

/// Creates the slots of all tables that have an optimizer, unless there are.
void add_slots(EmbeddingState& state);

/// What lookups in the table round its rows to.
kernels::Buckets buckets_of(const TableConfig& table);

/// How the coming update of `table` rounds: a function of the layer's seed, the
/// table's name and the number of updates so far.
kernels::Rounding rounding_of(
    const EmbeddingState& state,
    const TableState& table);

/// A copy that shares no tensor with `state`.
EmbeddingState deep_copy(const EmbeddingState& state);

/// Errors:  c10::ValueError beginning with `where`, listing the known names.
TableState& find_table(
    EmbeddingState& state,
    const std::string& name,
    const std::string& where);

/// Errors:  c10::Error beginning with `where` and ending with `advice`, when there
///          are several ranks.
void check_holds_all_rows(
    const EmbeddingState& state,
    const std::string& where,
    const std::string& advice);

/// Replaces the local rows by theirs in `values` [vocab, dim], rounded to the
/// table's dtype.
/// Errors:  c10::TypeError or ValueError naming the table.
void assign_table(TableState& table, const at::Tensor& values);

/// A float32 copy of rows [begin, end), from all ranks.
/// Errors:  c10::ValueError or IndexError naming the table.
at::Tensor read_rows(
    EmbeddingState& state,
    const std::string& table,
    int64_t begin,
    int64_t end);

EmbeddingTables embedding_tables_of(const EmbeddingState& state);

}  // namespace tessera
