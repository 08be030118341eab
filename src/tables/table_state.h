// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizer.h>
#include <tessera/tables/table_config.h>

#include "src/kernels/kernels.h"
#include "src/tables/local_rows.h"
#include "src/tables/touched_rows.h"

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
  /// The gradients that gradient_accumulation_steps has collected for an optimizer on
  /// the host, which shares this tensor; nullptr without such an optimizer. An engine
  /// has EmbeddingState::accumulated instead.
  std::shared_ptr<at::Tensor> gradient_sum = {};
};

/// The initial values of `table`'s local rows.
/// Errors:  c10::ValueError for values that its dtype can't hold, or from a
///          Callable.
void fill_rows(TableState& table, uint64_t seed);

/// What lookups in the table round its rows to.
kernels::Buckets buckets_of(const TableConfig& table);

/// Replaces the local rows by theirs in `values` [vocab, dim], rounded to the
/// table's dtype.
/// Errors:  c10::TypeError or ValueError naming the table.
void assign_table(TableState& table, const at::Tensor& values);

/// A float32 copy of rows [begin, end); zeros in place of those that are not
/// local or that another rank answers for.
/// Errors:  c10::IndexError naming the table.
at::Tensor read_local_rows(const TableState& table, int64_t begin, int64_t end);

}  // namespace tessera
