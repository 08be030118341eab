// SPDX-License-Identifier: Apache-2.0
#include "serialization/saved_keys.h"

#include <tessera/common/shorten.h>

#include "optim/row_update.h"
#include "optim/tensor_update.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"
#include "src/tables/key_table_rows.h"

#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

namespace tessera {

namespace {

constexpr const char* kSketch = "key_sketch";
constexpr const char* kHalfLife = "key_half_life";
constexpr const char* kCounts = "key_counts";

template <class T>
std::vector<T> vector_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  const auto* begin = values.const_data_ptr<T>();
  return {begin, begin + values.numel()};
}

template <class... Args>
void check_keys(
    bool is_valid,
    const TableState& table,
    const std::string& where,
    fmt::format_string<Args...> problem,
    Args&&... args) {
  TESSERA_CHECK_VALUE(
      is_valid,
      "{} the saved keys of table '{}' can't be used: {}. Nothing was changed. Load another file.",
      where,
      shorten(table.name),
      fmt::format(problem, std::forward<Args>(args)...));
}

}  // namespace

double half_life_of(const KeyIndex& index) {
  const auto* policy =
      std::get_if<eviction::LeastFrequentlyUsed>(&index.config().eviction);
  return policy == nullptr ? 0.0 : policy->half_life;
}

std::vector<std::pair<std::string, at::Tensor>> saved_tensors(
    const TableState& table) {
  const at::NoGradGuard no_grad;
  const KeyIndex& index = table.key_rows->index();
  std::vector<int64_t> keys;
  std::vector<int64_t> rows;
  std::vector<int64_t> updates;
  std::vector<float> frequencies;
  for (const KeyEntry& entry : index.sorted_entries()) {
    keys.push_back(entry.key);
    rows.push_back(entry.row);
    updates.push_back(entry.last_update);
    frequencies.push_back(entry.frequency);
  }
  const at::Tensor row_numbers = at::tensor(rows, at::kLong);
  const KeyCounts& counts = index.counts();
  std::vector<std::pair<std::string, at::Tensor>> tensors{
      {kSavedKeys, at::tensor(keys, at::kLong)},
      {"parameters", table.parameters.index_select(0, row_numbers)},
      {kKeyUpdates, at::tensor(updates, at::kLong)},
      {kKeyFrequencies, at::tensor(frequencies, at::kFloat)},
      {kSketch, at::tensor(index.sketch(), at::kByte)},
      {kHalfLife, at::tensor({half_life_of(index)}, at::kDouble)},
      {kCounts,
       at::tensor(
           {counts.admitted,
            counts.evicted,
            counts.dropped,
            index.partitions().count()},
           at::kLong)}};
  for (const Slot& slot : table.slots) {
    tensors.emplace_back(
        optim::slot_key(slot.name), slot.values.index_select(0, row_numbers));
  }
  return tensors;
}

void assign_keys(
    TableState& table,
    const at::Tensor& keys,
    const at::Tensor& values,
    int64_t update) {
  const std::string where = "[update_embedding_table]";
  TESSERA_CHECK_VALUE(
      table.key_rows != nullptr,
      "{} table '{}' has a vocabulary, and no keys. Pass only values.",
      where,
      shorten(table.name));
  TESSERA_CHECK_TYPE(
      keys.defined() && keys.layout() == at::kStrided && keys.is_cpu() &&
          keys.scalar_type() == at::kLong,
      "{} table '{}': keys must be a dense int64 cpu tensor, but got {}. Call to(at::kCPU, at::kLong) on them.",
      where,
      shorten(table.name),
      describe(keys));
  TESSERA_CHECK_TYPE(
      values.defined() && values.layout() == at::kStrided &&
          !values.is_meta() && at::isFloatingType(values.scalar_type()),
      "{} table '{}': values must be a dense tensor of a floating-point type, but got {}. Call to(at::kFloat) on them.",
      where,
      shorten(table.name),
      describe(values));
  TESSERA_CHECK_VALUE(
      keys.dim() == 1 && values.dim() == 2 && values.size(0) == keys.size(0) &&
          values.size(1) == table.config->dim,
      "{} table '{}': expected keys [n] and values [n, {}], but got {} and {}. Pass one row for each key.",
      where,
      shorten(table.name),
      table.config->dim,
      keys.sizes(),
      values.sizes());
  KeyIndex& index = table.key_rows->index();
  SavedKeys saved{
      .sketch = index.table_sketch(),
      .partitions = index.partitions().count(),
      .counts = index.counts()};
  for (const int64_t key : vector_of<int64_t>(keys)) {
    saved.counts.admitted += index.owns(key) ? 1 : 0;
    saved.entries.push_back(
        {.key = key, .last_update = static_cast<uint32_t>(update)});
  }
  const KeyCounts counts = saved.counts;
  const SavedTensors tensors{
      {"parameters",
       rows_of_dtype(values.detach().to(at::kCPU), table.config->dtype)
           .contiguous()}};
  LoadedKeys loaded(std::move(saved), update, /*later=*/0, table, where);
  const std::vector<uint32_t> rows = loaded.place(table);
  copy_key_rows(tensors, loaded, rows, /*slots=*/{}, table);
  index.set_counts(counts);
}

SavedKeys read_keys(
    const SavedTensors& tensors,
    const TableState& table,
    const std::string& where) {
  const int64_t rows = tensors.at("parameters").size(0);
  const auto read =
      [&](const std::string& name, at::ScalarType dtype, int64_t size) {
        const auto found = tensors.find(name);
        const at::Tensor values =
            found == tensors.end() ? at::Tensor() : found->second;
        check_keys(
            values.defined() && values.scalar_type() == dtype &&
                values.dim() == 1 && (size < 0 || values.numel() == size),
            table,
            where,
            "{} must be a vector of {}{}, but is {}",
            name,
            size < 0 ? "" : fmt::format("{} ", size),
            c10::toString(dtype),
            describe(values));
        return values;
      };
  const auto keys = vector_of<int64_t>(read(kSavedKeys, at::kLong, rows));
  const auto updates = vector_of<int64_t>(read(kKeyUpdates, at::kLong, rows));
  const auto frequencies =
      vector_of<float>(read(kKeyFrequencies, at::kFloat, rows));
  const auto counts = vector_of<int64_t>(read(kCounts, at::kLong, 4));
  const auto half_life = vector_of<double>(read(kHalfLife, at::kDouble, 1));
  check_keys(
      std::isfinite(half_life[0]) && half_life[0] >= 0.0,
      table,
      where,
      "the half-life is {}",
      half_life[0]);
  SavedKeys saved{
      .sketch = vector_of<uint8_t>(read(kSketch, at::kByte, -1)),
      .partitions = counts[3],
      .half_life = half_life[0],
      .counts = {counts[0], counts[1], counts[2]}};
  saved.entries.reserve(rows);
  for (int64_t i = 0; i < rows; ++i) {
    check_keys(
        updates[i] >= 0 && updates[i] <= std::numeric_limits<uint32_t>::max(),
        table,
        where,
        "the last update of key {} is {}",
        keys[i],
        updates[i]);
    saved.entries.push_back(
        {.key = keys[i],
         .last_update = static_cast<uint32_t>(updates[i]),
         .frequency = frequencies[i]});
  }
  return saved;
}

SavedKeys keys_of_vocabulary(
    int64_t rows,
    const TableState& table,
    int64_t update) {
  SavedKeys keys{
      .partitions = table.key_rows->index().partitions().count(),
      .counts = {.admitted = rows}};
  keys.sketch.assign(table.key_rows->index().sketch_size(), 0);
  keys.entries.reserve(rows);
  for (int64_t row = 0; row < rows; ++row) {
    keys.entries.push_back(
        {.key = row, .last_update = static_cast<uint32_t>(update)});
  }
  return keys;
}

LoadedKeys::LoadedKeys(
    SavedKeys keys,
    int64_t updates,
    int64_t later,
    const TableState& table,
    std::string where)
    : where_(std::move(where)), keys_(std::move(keys)) {
  if (table.key_rows != nullptr) {
    adapt_scores(updates, later, table.key_rows->index());
  }
  const KeyCounts& counts = keys_.counts;
  check_keys(
      counts.admitted >= 0 && counts.evicted >= 0 && counts.dropped >= 0,
      table,
      where_,
      "a count is negative");
  for (const KeyEntry& entry : keys_.entries) {
    check_keys(
        std::isfinite(entry.frequency),
        table,
        where_,
        "the frequency of key {} is not finite",
        entry.key);
  }
  if (table.key_rows != nullptr) {
    const KeyIndex& index = table.key_rows->index();
    index.check(keys_.entries, keys_.sketch, where_);
    TESSERA_CHECK_VALUE(
        keys_.sketch.empty() || keys_.partitions == index.partitions().count(),
        "{} the sketch of table '{}' was saved with {} partitions, but a capacity of {} has {}. Nothing was changed. Use the capacity with which it was saved.",
        where_,
        shorten(table.name),
        keys_.partitions,
        index.partitions().capacity(),
        index.partitions().count());
    keep_if([&](const KeyEntry& entry) { return index.owns(entry.key); });
  } else {
    keep_local_rows(table);
  }
}

void LoadedKeys::adapt_scores(
    int64_t updates,
    int64_t later,
    const KeyIndex& index) {
  const double half_life = half_life_of(index);
  for (KeyEntry& entry : keys_.entries) {
    if (!std::isfinite(entry.frequency)) {
      continue;  // the constructor refuses it
    }
    if (half_life == 0.0) {
      entry.frequency = 0.0F;
    } else if (half_life != keys_.half_life || later != 0) {
      // log2 of the occurrences that the frequency counts now
      const double present = keys_.half_life > 0.0
          ? entry.frequency - static_cast<double>(updates) / keys_.half_life
          : (entry.last_update - static_cast<double>(updates)) / half_life;
      entry.frequency = static_cast<float>(
          present + static_cast<double>(updates + later) / half_life);
    }
    entry.last_update = static_cast<uint32_t>(std::clamp<int64_t>(
        entry.last_update + later,
        0,
        std::numeric_limits<uint32_t>::max() - 1));
  }
  keys_.half_life = half_life;
}

// Drops the entries of other ranks.
template <class IsOwn>
void LoadedKeys::keep_if(IsOwn is_own) {
  size_t kept = 0;
  for (size_t i = 0; i < keys_.entries.size(); ++i) {
    if (is_own(keys_.entries[i])) {
      keys_.entries[kept++] = keys_.entries[i];
      positions_.push_back(static_cast<int64_t>(i));
    }
  }
  keys_.entries.resize(kept);
}

void LoadedKeys::keep_local_rows(const TableState& table) {
  const int64_t vocabulary_size = table.config->vocabulary_size;
  std::vector<bool> is_used(vocabulary_size, false);
  keep_if([&](KeyEntry& entry) {
    const int64_t key = entry.key;
    TESSERA_CHECK_VALUE(
        key >= 0 && key < vocabulary_size,
        "{} table '{}' was saved with keys, but has a vocabulary of {} rows in the layer, and the saved key {} is none of these rows. Nothing was changed. Set TableConfig::keys, or enlarge vocabulary_size if all keys are small numbers.",
        where_,
        shorten(table.name),
        vocabulary_size,
        key);
    check_keys(!is_used[key], table, where_, "key {} occurs twice", key);
    is_used[key] = true;
    const int64_t row = table.rows.count_before(key);
    entry.row = static_cast<uint32_t>(row);
    return row < table.rows.count && table.rows.numbers[row] == key;
  });
}

std::vector<uint32_t> LoadedKeys::place(TableState& table) {
  if (table.key_rows != nullptr) {
    table.key_rows->index().assign(
        keys_.entries, keys_.sketch, keys_.counts, where_);
    note_write(table.parameters);
  }
  const auto rows =
      c10::fmap(keys_.entries, [](const KeyEntry& entry) { return entry.row; });
  if (table.key_rows != nullptr) {
    const auto key_of = [](const KeyEntry& entry) { return entry.key; };
    table.key_rows->set_row_keys(rows, c10::fmap(keys_.entries, key_of));
  }
  return rows;
}

void copy_key_rows(
    const SavedTensors& tensors,
    const LoadedKeys& keys,
    const std::vector<uint32_t>& rows,
    const std::vector<std::string>& slots,
    TableState& table) {
  const at::NoGradGuard no_grad;
  const at::Tensor row_numbers =
      at::tensor(std::vector<int64_t>(rows.begin(), rows.end()), at::kLong);
  const auto copy = [&](const std::string& name, at::Tensor& to) {
    at::Tensor values = tensors.at(name);
    if (values.scalar_type() != to.scalar_type()) {
      values = rows_of_dtype(float_rows(values), to.scalar_type());
    }
    const bool has_all =
        static_cast<int64_t>(keys.positions().size()) == values.size(0);
    to.index_copy_(
        0,
        row_numbers,
        has_all
            ? values
            : values.index_select(0, at::tensor(keys.positions(), at::kLong)));
  };
  copy("parameters", table.parameters);
  for (size_t i = 0; i < slots.size(); ++i) {
    copy(slots[i], table.slots[i].values);
  }
  finish_slots(rows, slots, table);
}

bool are_earlier(
    const std::vector<std::string>& keys,
    const TableState& table) {
  const auto key_of = [](const Slot& slot) {
    return optim::slot_key(slot.name);
  };
  return !keys.empty() && keys != c10::fmap(table.slots, key_of);
}

void finish_slots(
    const std::vector<uint32_t>& rows,
    const std::vector<std::string>& slots,
    TableState& table) {
  const at::Tensor row_numbers =
      at::tensor(std::vector<int64_t>(rows.begin(), rows.end()), at::kLong);
  if (are_earlier(slots, table)) {
    const auto values = c10::fmap(table.slots, [&](const Slot& slot) {
      return slot.values.index_select(0, row_numbers);
    });
    optim::convert_earlier_slots(*table.optimizer, values);
    for (size_t i = 0; i < values.size(); ++i) {
      table.slots[i].values.index_copy_(0, row_numbers, values[i]);
    }
  }
  if (!slots.empty() || table.key_rows == nullptr || table.slots.empty()) {
    return;
  }
  const auto specs = optim::slots_of(*table.optimizer);
  for (size_t i = 0; i < table.slots.size(); ++i) {
    table.slots[i].values.index_fill_(0, row_numbers, specs[i].initial_value);
  }
}

}  // namespace tessera
