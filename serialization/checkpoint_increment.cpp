// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_increment.h"

#include "serialization/checkpoint_reader.h"
#include "src/common/rank_group.h"
#include "src/tables/key_table_rows.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tessera {

namespace {

// Whether this rank compares the rows of `table` with the previous checkpoint.
// Interleaved rows are always saved whole.
bool compares_rows(const TableState& table) {
  return writes_rows(table) && table.rows.numbers.step == 1;
}

}  // namespace

ChainPosition choose_parent(
    const EmbeddingState& state,
    const CheckpointDirectory& directory,
    int64_t full_every) {
  if (full_every == 1 || directory.complete().empty() ||
      state.last_checkpoint.empty()) {
    return {};
  }
  std::vector<CheckpointLink> chain;
  try {
    chain = read_chain(
        directory.path(), directory.complete().back(), "[save_checkpoint]");
  } catch (const c10::Error&) {
    return {};  // Nothing can build on a damaged checkpoint.
  }
  const CheckpointLink& newest = chain.back();
  const int64_t increments = newest.manifest.increments + 1;
  if (increments >= full_every ||
      state.last_checkpoint !=
          checkpoint_id(directory.path() / newest.name, newest.xxh3)) {
    return {};
  }
  return {
      .parent = ManifestParent{.name = newest.name, .xxh3 = newest.xxh3},
      .increments = increments};
}

std::string checkpoint_id(
    const std::filesystem::path& checkpoint,
    const std::string& xxh3) {
  std::error_code ignored;
  return std::filesystem::absolute(checkpoint, ignored)
             .lexically_normal()
             .string() +
      " " + xxh3;
}

bool writes_rows(const TableState& table) {
  return !table.rows.is_copy;
}

std::vector<TableIncrement> find_touched(
    const EmbeddingState& state,
    std::vector<ManifestTable>& tables) {
  std::vector<TableIncrement> increments(tables.size());
  const int64_t own = state.ranks->rank();
  for (size_t i = 0; i < tables.size(); ++i) {
    const TableState& table = state.tables[i];
    if (table.key_rows != nullptr) {
      continue;  // see find_keys_to_save()
    }
    TableIncrement& increment = increments[i];
    const bool is_known =
        !writes_rows(table) || (compares_rows(table) && table.touched);
    if (is_known && writes_rows(table)) {
      increment.rows = table.touched->rows(table);
    }
    const std::vector<int64_t> counts = state.ranks->all_gather(
        is_known ? static_cast<int64_t>(increment.rows.size()) : int64_t{-1});
    if (*std::min_element(counts.begin(), counts.end()) < 0) {
      continue;
    }
    int64_t total = 0;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      if (static_cast<int64_t>(rank) == own) {
        increment.first = total;
      }
      total += counts[rank];
    }
    // If all rows were touched, a list of them would only make the checkpoint larger.
    if (total < table.config->vocabulary_size) {
      tables[i].touched = ManifestTouched{.count = total};
    }
  }
  return increments;
}

std::vector<std::string> gather_touched(
    const EmbeddingState& state,
    const std::vector<ManifestTable>& tables,
    const std::vector<TableIncrement>& increments) {
  std::vector<std::string> files(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    if (!tables[i].touched) {
      continue;
    }
    const auto first =
        static_cast<uint32_t>(state.tables[i].rows.numbers.first);
    std::vector<uint32_t> rows = increments[i].rows;
    for (uint32_t& row : rows) {
      row += first;
    }
    for (const std::string& rank_rows : state.ranks->gather(
             {reinterpret_cast<const char*>(rows.data()),
              rows.size() * sizeof(uint32_t)})) {
      files[i].append(rank_rows);
    }
  }
  return files;
}

void track_changes_from(
    const std::string& id,
    const std::vector<TableIncrement>& increments,
    std::vector<KeysToSave>& keys,
    EmbeddingState& state) {
  for (size_t i = 0; i < state.tables.size(); ++i) {
    TableState& table = state.tables[i];
    if (table.key_rows != nullptr) {
      table.key_rows->snapshot() = std::move(keys[i].snapshot);
      continue;
    }
    if (!compares_rows(table)) {
      continue;
    }
    if (!increments.empty() && table.touched) {
      table.touched->accept(table, increments[i].rows);
    } else {
      table.touched.emplace(table);
    }
  }
  state.last_checkpoint = id;
}

}  // namespace tessera
