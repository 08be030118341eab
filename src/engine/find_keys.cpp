// SPDX-License-Identifier: Apache-2.0
#include "src/engine/find_keys.h"

#include "src/engine/accumulated_gradients.h"
#include "src/tables/key_plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

namespace tessera {

namespace {

constexpr uint64_t kMaxCount = std::numeric_limits<uint32_t>::max();

// An id whose key has no row. Different keys have different hashes.
struct NewKey {
  uint64_t hash;
  int64_t key;
  uint32_t count;
  uint32_t* id;
};

bool is_trained(const TableState& table, UnknownKeys unknown) {
  return unknown == UnknownKeys::kAdmitted && table.optimizer.has_value();
}

// Makes keys[i] the key of ids[i].
void align_keys(IdBags& bags) {
  // This loop has no early exit, so that the compiler uses vector instructions.
  uint32_t different = bags.ids.size() == bags.keys.size() ? 0 : 1;
  for (size_t i = 0; i < bags.ids.size(); ++i) {
    different |= bags.ids[i] ^ static_cast<uint32_t>(i);
  }
  if (different == 0) {
    return;
  }
  Buffer<int64_t> keys(bags.ids.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = bags.keys[bags.ids[i]];
  }
  bags.keys = std::move(keys);
}

struct PlacedKeys {
  std::unique_ptr<KeyTableRows::Lease> lease = {};  // nullptr: no scratch rows
  std::shared_ptr<const InitialValues> initial_values = {};
};

// Gives scratch rows with initial values to the keys that the next update admits, and the
// row of zeros to the others.
PlacedKeys place_new_keys(
    KeyTableRows& rows,
    std::vector<NewKey>& new_keys,
    int64_t update) {
  if (new_keys.empty()) {
    return {};
  }
  constexpr int kMaxBits = 16;
  const int bits =
      std::clamp<int>(std::bit_width(new_keys.size()), 1, kMaxBits);
  sort_by_hash(
      new_keys,
      int64_t{1} << bits,
      [&](const NewKey& key) { return key.hash >> (64 - bits); },
      &NewKey::hash);
  std::vector<int64_t> keys;
  std::vector<std::pair<size_t, size_t>> ranges;  // of new_keys, for each key
  for (size_t begin = 0; begin < new_keys.size();) {
    size_t end = begin;
    uint64_t count = 0;
    while (end < new_keys.size() &&
           new_keys[end].hash == new_keys[begin].hash) {
      count += new_keys[end++].count;
    }
    if (rows.index().would_admit(
            new_keys[begin].key,
            static_cast<uint32_t>(std::min<uint64_t>(count, kMaxCount)),
            update)) {
      keys.push_back(new_keys[begin].key);
      ranges.emplace_back(begin, end);
    } else {
      for (size_t i = begin; i < end; ++i) {
        *new_keys[i].id = rows.zero_row();
      }
    }
    begin = end;
  }
  if (keys.empty()) {
    return {};
  }
  auto initial = rows.ordered_initial_values(std::move(keys));
  auto lease = rows.lease(std::ssize(ranges));
  std::vector<uint32_t> numbers(ranges.size());
  for (size_t k = 0; k < ranges.size(); ++k) {
    numbers[k] = lease->first() + static_cast<uint32_t>(k);
    for (size_t i = ranges[k].first; i < ranges[k].second; ++i) {
      *new_keys[i].id = numbers[k];
    }
  }
  rows.assign(numbers, initial->values);
  return {.lease = std::move(lease), .initial_values = std::move(initial)};
}

// Lets the keys that look up zeros look up the default key.
void use_default_key(
    const TableState& table,
    c10::ArrayRef<IdBags*> bags,
    bool is_trained,
    ScratchRows& scratch) {
  KeyTableRows& rows = *table.key_rows;
  const std::optional<int64_t> key = rows.index().config().default_key;
  const auto has_unknown = [&](const IdBags* feature) {
    const Buffer<uint32_t>& ids = feature->ids;
    return std::ranges::find(ids, rows.zero_row()) != ids.end();
  };
  if (!key || std::ranges::none_of(bags, has_unknown)) {
    return;
  }
  uint32_t row = rows.index().default_row();
  if (row == kNoRow) {
    if (!is_trained) {
      return;
    }
    const at::Tensor values = rows.initial_values(*key);
    scratch.push_back(rows.lease(1));
    row = scratch.back()->first();
    rows.assign(row, values);
  }
  for (IdBags* feature : bags) {
    const auto replace = [&](int64_t i) {
      feature->unknown_keys.push_back(feature->keys[i]);
      feature->unknown_counts.push_back(
          feature->key_counts.empty() ? 1 : feature->key_counts[i]);
      feature->keys[i] = *key;
      feature->ids[i] = row;
    };
    visit_equal(
        feature->ids.data(), 0, feature->nnz(), rows.zero_row(), replace);
  }
}

}  // namespace

bool has_key_tables(const EmbeddingState& state) {
  return std::ranges::any_of(state.tables, [](const TableState& table) {
    return table.key_rows != nullptr;
  });
}

void find_table_keys(
    const TableState& table,
    c10::ArrayRef<IdBags*> bags,
    UnknownKeys unknown,
    int64_t update,
    ScratchRows& scratch) {
  KeyTableRows& rows = *table.key_rows;
  const bool admits = is_trained(table, unknown);
  std::vector<NewKey> new_keys;
  for (IdBags* feature : bags) {
    align_keys(*feature);
    feature->keys_version = rows.index().version();
    feature->keys_insertions = rows.index().insertions();
    const int64_t missing = rows.index().find(
        feature->keys.data(), feature->nnz(), feature->ids.data());
    const auto add_new_key = [&](int64_t i) {
      if (admits) {
        new_keys.push_back(
            {.hash = hash_of_key(feature->keys[i]),
             .key = feature->keys[i],
             .count = feature->key_counts.empty() ? 1 : feature->key_counts[i],
             .id = &feature->ids[i]});
      } else {
        feature->ids[i] = rows.zero_row();
      }
    };
    if (missing > 0) {
      new_keys.reserve(
          new_keys.size() + (admits ? static_cast<size_t>(missing) : 0));
      visit_equal(feature->ids.data(), 0, feature->nnz(), kNoRow, add_new_key);
    }
  }
  PlacedKeys placed = place_new_keys(rows, new_keys, update);
  for (IdBags* feature : bags) {
    feature->initial_values = placed.initial_values;
  }
  if (placed.lease != nullptr) {
    scratch.push_back(std::move(placed.lease));
  }
}

ScratchRows find_keys(
    const EmbeddingState& state,
    std::vector<IdBags>& bags,
    UnknownKeys unknown) {
  ScratchRows scratch;
  for (size_t t = 0; t < state.tables.size(); ++t) {
    const TableState& table = state.tables[t];
    if (table.key_rows == nullptr) {
      continue;
    }
    std::vector<IdBags*> of_table;
    for (size_t i = 0; i < bags.size(); ++i) {
      if (state.features[i].table == t) {
        of_table.push_back(&bags[i]);
      }
    }
    find_table_keys(
        table, of_table, unknown, updates_of(state, table) + 1, scratch);
    use_default_key(table, of_table, is_trained(table, unknown), scratch);
  }
  return scratch;
}

}  // namespace tessera
