// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizer.h>
#include <tessera/tables/table_config.h>

#include "src/kernels/kernels.h"
#include "src/tables/row_marks.h"
#include "src/tables/touched_rows.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class KeyTableRows;
struct SampledRows;

/// The rows of one table that this process holds, in order.
struct LocalRows {
  kernels::RowNumbers numbers = {};  // their numbers in the table
  int64_t count = 0;
  /// Whether every rank holds them.
  bool is_data_parallel = false;
  /// Whether they are copies of the rows of another rank. Where each row counts once, as
  /// in a checkpoint, only the other rank's rows count.
  bool is_copy = false;

  /// The number of these rows whose number in the table is below `row`.
  int64_t count_before(int64_t row) const {
    const int64_t before =
        (row - numbers.first + numbers.step - 1) / numbers.step;
    return row <= numbers.first ? 0 : std::min(before, count);
  }

  static LocalRows all(int64_t vocabulary_size) {
    return {.count = vocabulary_size};
  }
};

/// A tensor that an optimizer keeps beside a table.
struct Slot {
  std::string name = {};
  at::Tensor values = {};  // [rows, dim], or [rows] with one number per row
  /// Its index in kernels::UpdateArgs::slots.
  size_t position = 0;
};

/// One table: its config, its rows, and the slots of its optimizer.
struct TableState {
  TablePtr config = {};
  /// The config's name, or `table_{i}`.
  std::string name = {};
  /// The table's own optimizer or the layer's; empty if the table can't be trained.
  std::optional<optim::OptimizerSpec> optimizer = {};
  /// The rows of the table that this process holds: all rows, unless it is sharded.
  LocalRows rows = {};
  at::Tensor parameters = {};  // [rows.count, stored_columns()]
  /// The keys and the memory of a key table, whose `parameters` are its rows. nullptr
  /// for a table with a vocabulary.
  std::shared_ptr<KeyTableRows> key_rows = {};
  std::vector<Slot> slots = {};
  /// The local rows that have changed since the last checkpoint; nullopt unless
  /// checkpoints are incremental.
  std::optional<TouchedRows> touched = {};
  /// The local rows that mark() has recorded since a publisher took them. nullptr unless a
  /// publisher follows the table. A copy of the table has none.
  std::shared_ptr<RowMarks> marks = {};
  /// Collects the first rows that get a gradient. Expired unless fit() checks that they
  /// move. A copy of the table has none.
  std::weak_ptr<SampledRows> first_rows = {};
  /// The sum of the gradients that an optimizer on the host has accumulated under
  /// gradient_accumulation_steps. The optimizer shares this tensor. nullptr without such
  /// an optimizer. A fused strategy has EmbeddingState::accumulated instead.
  std::shared_ptr<at::Tensor> gradient_sum = {};

  /// Records rows that an update writes. Every fused update calls it. Other code writes by
  /// LibTorch's operators or calls note_write(), and a publisher then copies all rows.
  template <class Rows, class RowOf = std::identity>
  void mark(const Rows& rows, RowOf row_of = {}) const {
    if (marks != nullptr) {
      for (const auto& row : rows) {
        marks->mark(static_cast<uint32_t>(std::invoke(row_of, row)));
      }
    }
  }
};

/// Tells autograd and publishers that a tensor has new values, as LibTorch's operators
/// do by themselves.
void note_write(const at::Tensor& tensor);

/// The columns of a tensor with rows of a dtype that TableConfig accepts: `dim`, or for
/// kChar the bytes of a row in kernels::Storage::kInt8.
int64_t stored_columns(int64_t dim, at::ScalarType dtype);

/// The dtype of a slot of a table. `is_per_row`: it has one number per row.
inline at::ScalarType slot_dtype_of(
    const TableConfig& config,
    bool is_per_row) {
  return is_per_row ? at::kFloat : config.slot_dtype;
}

/// Returns whether updates of the table round its rows or slots at random.
inline bool rounds_at_random(const TableConfig& config) {
  return config.slot_dtype != at::kFloat ||
      (config.dtype != at::kFloat && config.stochastic_rounding);
}

/// Returns the numbers of a table's rows, [rows, dim] float32. They share the memory of
/// `rows` if that is float32.
at::Tensor float_rows(const at::Tensor& rows);

/// Returns the numbers of a table's rows, [rows, dim]: those of kChar as float32, because
/// LibTorch has no dtype for them, and others as they are.
at::Tensor numbers_of(const at::Tensor& rows);

/// Sets a table's rows to `values` [rows, dim], of a floating-point dtype, rounded to the
/// nearest. Rows of kChar must be contiguous.
void assign_rows(at::Tensor rows, const at::Tensor& values);

/// Returns `values` [rows, dim] as a table of this dtype stores them, [rows,
/// stored_columns()].
at::Tensor rows_of_dtype(const at::Tensor& values, at::ScalarType dtype);

/// Describes a table's rows, of a dtype that TableConfig accepts, to kernels that only read.
kernels::StoredRows stored_rows(const at::Tensor& rows);

/// Like stored_rows(), for kernels that write.
kernels::StoredRows mutable_rows(at::Tensor& rows);

/// Fills the local rows of `table` with their initial values.
/// Errors:  c10::ValueError for values that its dtype can't hold, and for an unusable
///          result of a Callable.
void fill_rows(TableState& table, uint64_t seed);

/// The initializer of the table, or the default one.
Initializer initializer_of(const TableConfig& config);

/// Fills `rows` [keys, dim] float32 like initialize_rows(), with the keys of a key
/// table instead of row numbers.
/// Errors:  c10::ValueError for an unusable result of a Callable.
void initialize_keys(
    const Initializer& initializer,
    uint64_t seed,
    std::string_view table_name,
    const int64_t* keys,
    at::Tensor rows);

/// Refuses initial values that are infinite in the dtype of the table. `rounded` are the
/// values in this dtype.
/// Errors:  c10::ValueError naming the table.
void check_initial_values(
    const at::Tensor& rounded,
    const TableConfig& config,
    const std::string& name);

/// Returns the values to which lookups round the rows of the table.
kernels::Buckets buckets_of(const TableConfig& table);

/// Copies the local rows from `values` [vocab, dim], rounded to the table's dtype.
/// Errors:  c10::TypeError or ValueError naming the table.
void assign_table(TableState& table, const at::Tensor& values);

/// Returns a float32 copy of the rows [begin, end). Rows that are not local, or that are
/// copies (LocalRows::is_copy), are zeros.
/// Errors:  c10::IndexError for a range beyond the table, and c10::ValueError for a key
///          table, both naming the table.
at::Tensor read_local_rows(const TableState& table, int64_t begin, int64_t end);

}  // namespace tessera
