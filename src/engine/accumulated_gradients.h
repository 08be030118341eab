// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

/// The gradients that gradient_accumulation_steps has collected for a table since its
/// last update, in the form that files store: one sum per row.
struct AccumulatedGradients {
  /// [n] int64, ascending. Rows of the whole table, or positions in `keys`.
  at::Tensor rows = {};
  at::Tensor sums = {};  // [n, dim] float32
  /// [keys] int64, of a key table: all keys that have occurred, even without a
  /// gradient, in the order of their hashes.
  at::Tensor keys = {};
  at::Tensor counts = {};  // [keys] int64, their occurrences
  /// Occurrences of keys that were evicted after their lookup.
  int64_t dropped = 0;
};

/// The number of passes that make one update of the table; 1 without an optimizer.
int64_t accumulation_steps_of(const TableState& table);

/// Whether the table's current accumulation is incomplete.
bool is_accumulating(const EmbeddingState& state, const TableState& table);

/// The number of updates applied so far to the table that is updated most often.
int64_t updates_applied(const EmbeddingState& state);

/// A copy of the gradients that this process has collected for the table.
AccumulatedGradients accumulated_gradients(
    const EmbeddingState& state,
    size_t table);

/// The gradients of the local rows, or of the keys of this rank.
AccumulatedGradients local_part(
    const AccumulatedGradients& gradients,
    const TableState& table);

/// Refuses gradients that can't belong to the table.
/// Errors:  c10::ValueError that begins with `where` and names the table.
void check_accumulated(
    const AccumulatedGradients& gradients,
    const TableState& table,
    const std::string& where);

/// Replaces the table's collected gradients by the local part of `gradients`, which
/// were collected in `passes` passes and have passed check_accumulated().
void set_accumulated(
    EmbeddingState& state,
    size_t table,
    const AccumulatedGradients& gradients,
    int64_t passes);

/// Drops the table's collected gradients.
void clear_accumulated(EmbeddingState& state, size_t table);

}  // namespace tessera
