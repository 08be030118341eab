// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/tensor_update.h"
#include "src/common/buffer.h"
#include "src/engine/table_update.h"
#include "src/features/id_bags.h"
#include "src/tables/key_index.h"
#include "src/tables/table_state.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace tessera {

struct EmbeddingState;

/// The keys of gradients that were collected over several passes. The key of sum i is
/// keys[rows[i]], where `rows` are GradientAccumulator::rows().
struct CollectedKeys {
  Buffer<int64_t> keys = {};  // distinct
  Buffer<uint32_t> counts = {};  // occurrences, with those that had no gradient
  int64_t dropped = 0;  // occurrences of keys evicted after their lookup
};

/// The changes that an update makes to the keys of one key table.
struct KeyUpdate {
  TableState* table = nullptr;
  KeyPlan plan = {};
  std::vector<int64_t> new_keys = {};  // the admitted ones
  std::vector<uint32_t> new_rows = {};  // [new_keys]
  at::Tensor initial_values = {};  // [new_keys, dim]
  int64_t dropped = 0;  // in addition to KeyPlan::Part::dropped
  std::list<Buffer<uint32_t>> rows = {};  // the terms point to them
  std::list<IdBags> swept = {};  // the terms point to them
};

/// Decides which keys of a table get a row and which lose it in the update with the number
/// `update`, and sets TableUpdate::Term::rows of all terms. The table does not change before
/// apply(). `collected` are
/// the keys of the only term, or nullptr if the terms have their keys in their bags.
/// Errors:  c10::ValueError from the initializer.
KeyUpdate plan_keys(
    TableUpdate& table_update,
    const CollectedKeys* collected,
    int64_t update);

/// Returns the keys of `collected` and of the terms. Sets TableUpdate::Term::rows of each
/// term to the indices of its keys in the result. `rows` owns the memory of these
/// indices.
CollectedKeys collect_keys(
    const CollectedKeys& collected,
    c10::ArrayRef<TableUpdate::Term*> terms,
    const TableState& table,
    std::list<Buffer<uint32_t>>& rows);

/// Call this for rules that update only the rows of the terms. The update of the rows, not
/// apply(), then records when their keys were used.
void record_with_rows(KeyUpdate& update, TableUpdate& table_update);

/// Call this after plan_keys() for rules that update all rows. It adds a term with the
/// rows of all other keys to the update. `zeros` [dim] is their gradient.
void sweep_all_keys(
    KeyUpdate& update,
    TableUpdate& table_update,
    const float* zeros);

/// Replaces the rows of new keys in the result of a gather by their initial values. `ids`
/// [rows] are the gathered rows.
void set_initial_rows(
    const KeyUpdate& update,
    const at::Tensor& ids,
    optim::TensorRows& rows);

/// Carries out the plan, and fills the rows and slots of new keys.
void apply(const KeyUpdate& update);

/// Refuses to change the keys of a table while gradients wait for an update. They wait if
/// passes have been accumulated, or if `has_pending` is true.
/// Errors:  c10::Error beginning with `where`.
void check_nothing_waits(
    const EmbeddingState& state,
    const TableState& table,
    bool has_pending,
    const std::string& where);

/// Removes the keys of a key table whose last update is at least `updates` updates
/// ago, and returns their number.
/// Errors:  c10::ValueError for a table without keys, and for updates < 1; c10::Error as
///          check_nothing_waits().
int64_t evict_keys(
    const EmbeddingState& state,
    TableState& table,
    int64_t updates,
    bool has_pending);

}  // namespace tessera
