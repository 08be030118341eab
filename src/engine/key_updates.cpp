// SPDX-License-Identifier: Apache-2.0
#include "src/engine/key_updates.h"

#include <tessera/common/shorten.h>

#include "optim/row_update.h"
#include "src/common/check.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"

#include <cstring>
#include <unordered_map>
#include <utility>

namespace tessera {

namespace {

struct KeyHash {
  size_t operator()(int64_t key) const {
    return hash_of_key(key);
  }
};

Buffer<uint32_t>& add_rows(std::list<Buffer<uint32_t>>& rows, int64_t size) {
  rows.emplace_back();
  rows.back().resize(size);
  return rows.back();
}

// Adds the occurrences of keys that were looked up as the default key. Their rows are not
// used, because the gradient belongs to the default key.
void add_unknown_keys(
    c10::ArrayRef<TableUpdate::Term> terms,
    std::vector<KeyOccurrences>& occurrences,
    std::list<Buffer<uint32_t>>& rows) {
  for (const TableUpdate::Term& term : terms) {
    const auto size = static_cast<int64_t>(term.bags->unknown_keys.size());
    if (size > 0) {
      occurrences.push_back(
          {.keys = term.bags->unknown_keys.data(),
           .counts = term.bags->unknown_counts.data(),
           .size = size,
           .rows = add_rows(rows, size).data()});
    }
  }
}

}  // namespace

KeyUpdate plan_keys(
    TableUpdate& table_update,
    const CollectedKeys* collected,
    int64_t update) {
  KeyUpdate result{.table = table_update.table};
  KeyTableRows& rows = *table_update.table->key_rows;
  std::vector<KeyOccurrences> occurrences;
  std::vector<std::shared_ptr<const InitialValues>> known;
  if (collected != nullptr) {
    const auto size = static_cast<int64_t>(collected->keys.size());
    Buffer<uint32_t>& row_of_key = add_rows(result.rows, size);
    occurrences.push_back(
        {.keys = collected->keys.data(),
         .counts = collected->counts.data(),
         .size = size,
         .rows = row_of_key.data()});
    result.dropped = collected->dropped;
    result.plan = rows.index().plan(occurrences, update);
    for (TableUpdate::Term& term : table_update.terms) {
      Buffer<uint32_t>& row_of_id = add_rows(result.rows, term.bags->nnz());
      for (size_t i = 0; i < row_of_id.size(); ++i) {
        row_of_id[i] = row_of_key[term.bags->ids[i]];
      }
      term.rows = row_of_id.data();
    }
  } else {
    for (TableUpdate::Term& term : table_update.terms) {
      const IdBags& bags = *term.bags;
      Buffer<uint32_t>& row_of_id = add_rows(result.rows, bags.nnz());
      occurrences.push_back(
          {.keys = bags.keys.data(),
           .looked_up = bags.ids.data(),
           .version = bags.keys_version,
           .insertions = bags.keys_insertions,
           .counts = bags.key_counts.empty() ? nullptr : bags.key_counts.data(),
           .size = bags.nnz(),
           .rows = row_of_id.data()});
      term.rows = row_of_id.data();
      if (known.empty() || known.back() != bags.initial_values) {
        known.push_back(bags.initial_values);
      }
    }
    add_unknown_keys(table_update.terms, occurrences, result.rows);
    result.plan = rows.index().plan(occurrences, update);
    // A key that has looked up zeros gets no gradient, even if it is admitted now.
    const uint32_t zero_row = rows.zero_row();
    for (const KeyOccurrences& term : occurrences) {
      for (int64_t i = 0; term.looked_up != nullptr && i < term.size; ++i) {
        term.rows[i] = term.looked_up[i] == zero_row ? kNoRow : term.rows[i];
      }
    }
  }
  for (const KeyPlan::Part& part : result.plan.parts) {
    for (const KeyEntry& entry : part.inserted) {
      result.new_keys.push_back(entry.key);
      result.new_rows.push_back(entry.row);
    }
  }
  if (!result.new_keys.empty()) {
    result.initial_values = rows.initial_values(result.new_keys, known);
  }
  return result;
}

CollectedKeys collect_keys(
    const CollectedKeys& collected,
    c10::ArrayRef<TableUpdate::Term*> terms,
    const TableState& table,
    std::list<Buffer<uint32_t>>& rows) {
  const KeyTableRows& key_rows = *table.key_rows;
  CollectedKeys result = collected;
  std::unordered_map<int64_t, uint32_t, KeyHash> numbers;
  numbers.reserve(2 * result.keys.size());
  for (size_t i = 0; i < result.keys.size(); ++i) {
    numbers.emplace(result.keys[i], static_cast<uint32_t>(i));
  }
  const auto count_key = [&](int64_t key, uint32_t count) {
    const auto [entry, is_new] =
        numbers.try_emplace(key, static_cast<uint32_t>(result.keys.size()));
    if (is_new) {
      result.keys.push_back(key);
      result.counts.push_back(0);
    }
    result.counts[entry->second] += count;
    return entry->second;
  };
  Buffer<uint32_t> found;
  for (TableUpdate::Term* term : terms) {
    const IdBags& bags = *term->bags;
    Buffer<uint32_t>& number_of_id = add_rows(rows, bags.nnz());
    found.resize(bags.nnz());
    key_rows.index().find(bags.keys.data(), bags.nnz(), found.data());
    for (int64_t i = 0; i < bags.nnz(); ++i) {
      const uint32_t count = bags.key_counts.empty() ? 1 : bags.key_counts[i];
      number_of_id[i] = kNoRow;
      if (bags.ids[i] < key_rows.zero_row() && found[i] == kNoRow) {
        result.dropped += count;  // evicted after its lookup
        continue;
      }
      const uint32_t number = count_key(bags.keys[i], count);
      if (bags.ids[i] != key_rows.zero_row()) {
        number_of_id[i] = number;
      }
    }
    for (size_t i = 0; i < bags.unknown_keys.size(); ++i) {
      count_key(bags.unknown_keys[i], bags.unknown_counts[i]);
    }
    term->rows = number_of_id.data();
  }
  return result;
}

void record_with_rows(KeyUpdate& update, TableUpdate& table_update) {
  table_update.record = {
      .index = &update.table->key_rows->index(), .update = update.plan.update};
  update.plan.used_rows.clear();
}

void sweep_all_keys(
    KeyUpdate& update,
    TableUpdate& table_update,
    const float* zeros) {
  const KeyIndex& index = update.table->key_rows->index();
  std::vector<char> is_done(index.rows(), 0);
  for (const TableUpdate::Term& term : table_update.terms) {
    for (int64_t i = 0; i < term.bags->nnz(); ++i) {
      if (term.rows[i] != kNoRow) {
        is_done[term.rows[i]] = 1;
      }
    }
  }
  for (const KeyPlan::Part& part : update.plan.parts) {
    for (const uint32_t row : part.evicted) {
      is_done[row] |= 2;
    }
  }
  update.swept.emplace_back();
  IdBags& bags = update.swept.back();
  for (const KeyEntry& entry : index.entries()) {
    if (is_done[entry.row] == 0) {
      bags.ids.push_back(entry.row);
    }
  }
  for (const uint32_t row : update.new_rows) {
    if ((is_done[row] & 1) == 0) {
      bags.ids.push_back(row);
    }
  }
  bags.bags = bags.nnz();
  bags.dim = update.table->config->dim;
  table_update.terms.push_back({.bags = &bags, .gradient = zeros});
  table_update.rows.sweep = false;
}

void set_initial_rows(
    const KeyUpdate& update,
    const at::Tensor& ids,
    optim::TensorRows& rows) {
  if (update.new_rows.empty()) {
    return;
  }
  std::unordered_map<int64_t, int64_t> number_of;
  for (size_t i = 0; i < update.new_rows.size(); ++i) {
    number_of.emplace(update.new_rows[i], static_cast<int64_t>(i));
  }
  const auto specs = optim::slots_of(*update.table->optimizer);
  const auto* id = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const auto found = number_of.find(id[i]);
    if (found == number_of.end()) {
      continue;
    }
    rows.weights.select(0, i).copy_(
        update.initial_values.select(0, found->second));
    for (size_t slot = 0; slot < specs.size(); ++slot) {
      rows.slots[slot].select(0, i).fill_(specs[slot].initial_value);
    }
  }
}

void apply(const KeyUpdate& update) {
  TableState& table = *update.table;
  KeyTableRows& rows = *table.key_rows;
  rows.index().apply(update.plan);
  rows.index().count_dropped(update.dropped);
  if (update.new_rows.empty()) {
    return;
  }
  table.mark(update.new_rows);
  rows.set_row_keys(update.new_rows, update.new_keys);
  rows.assign(update.new_rows, update.initial_values);
  const auto specs = optim::slots_of(*table.optimizer);
  for (size_t slot = 0; slot < table.slots.size(); ++slot) {
    at::Tensor& values = table.slots[slot].values;
    const at::Tensor initial =
        values.new_full(values.sizes().slice(1), specs[slot].initial_value);
    auto* data = static_cast<char*>(values.mutable_data_ptr());
    write_rows(update.new_rows, data, initial.nbytes(), [&](int64_t i) {
      std::memcpy(
          data + update.new_rows[i] * initial.nbytes(),
          initial.const_data_ptr(),
          initial.nbytes());
    });
  }
}

void check_nothing_waits(
    const EmbeddingState& state,
    const TableState& table,
    bool has_pending,
    const std::string& where) {
  TESSERA_CHECK(
      !has_pending && !is_accumulating(state, table),
      "{} table '{}' has gradients that wait for an update. Call it after the update.",
      where,
      shorten(table.name));
}

int64_t evict_keys(
    const EmbeddingState& state,
    TableState& table,
    int64_t updates,
    bool has_pending) {
  TESSERA_CHECK_VALUE(
      table.key_rows != nullptr,
      "[evict] table '{}' has a vocabulary, and no keys. Only rows of keys can be evicted.",
      shorten(table.name));
  TESSERA_CHECK_VALUE(
      updates >= 1,
      "[evict] updates must be >= 1, but got {}. Pass the age of the keys to evict.",
      updates);
  check_nothing_waits(state, table, has_pending, "[evict]");
  const int64_t done = updates_of(state, table);
  return table.key_rows->index().evict_before(done - updates + 1);
}

}  // namespace tessera
