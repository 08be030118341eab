// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"
#include "src/features/id_bags.h"
#include "src/tables/key_table_rows.h"

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera {

/// The result for a key without a row. In training, a key that the next update admits looks
/// up its initial value (kAdmitted). All others look up zeros, or DynamicKeys::default_key.
enum class UnknownKeys { kZeros, kAdmitted };

/// The scratch rows with the initial values of new keys. They must outlive the lookup.
using ScratchRows = std::vector<std::unique_ptr<KeyTableRows::Lease>>;

/// Returns true if the state has a key table.
bool has_key_tables(const EmbeddingState& state);

/// Replaces the ids of features with key tables, which are positions in IdBags::keys,
/// by rows of KeyTableRows::all_rows(). Afterwards, keys[i] is the key of ids[i]. If an
/// unknown key looks up the default key, the default key takes its place in `keys`. The
/// bags must not hold kZeroRow.
/// Errors:  c10::ValueError for an unusable initializer; c10::Error if one batch has too
///          many new keys.
ScratchRows find_keys(
    const EmbeddingState& state,
    std::vector<IdBags>& bags,
    UnknownKeys unknown);

/// Like find_keys(), for the features of one key table, but without the default key. Keys
/// that would look up the default key get KeyTableRows::zero_row(). `update` is the number
/// of the next update. The scratch rows are added to `scratch`.
void find_table_keys(
    const TableState& table,
    c10::ArrayRef<IdBags*> bags,
    UnknownKeys unknown,
    int64_t update,
    ScratchRows& scratch);

}  // namespace tessera
