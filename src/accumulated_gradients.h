// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/embedding_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera {

/// What gradient_accumulation_steps has collected for a table since its last
/// update, as files hold it: one sum per row.
struct AccumulatedGradients {
  at::Tensor rows = {};  // [n] int64, rows of the whole table, ascending
  at::Tensor sums = {};  // [n, dim] float32
};

/// How many passes make one update of the table; 1 without an optimizer.
int64_t accumulation_steps_of(const TableState& table);

/// Whether the table has been left between two updates.
bool is_accumulating(const EmbeddingState& state, const TableState& table);

/// Updates applied so far: of the table that is updated most often.
int64_t updates_applied(const EmbeddingState& state);

/// A copy of what this process has collected for the table.
AccumulatedGradients accumulated_gradients(const TableState& table);

/// Those of the local rows.
AccumulatedGradients local_part(
    const AccumulatedGradients& gradients,
    const LocalRows& rows);

/// Errors:  c10::ValueError beginning with `where` and naming the table, for
///          gradients that can't be its own.
void check_accumulated(
    const AccumulatedGradients& gradients,
    const TableState& table,
    const std::string& where);

/// Replaces what the table has collected by the local part of `gradients`,
/// which check_accumulated() has passed, from `passes` passes.
void set_accumulated(
    TableState& table,
    const AccumulatedGradients& gradients,
    int64_t passes);

/// Drops what the table has collected.
void clear_accumulated(TableState& table);

}  // namespace tessera
