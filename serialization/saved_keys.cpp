// SPDX-License-Identifier: Apache-2.0
#include "serialization/saved_keys.h"

#include <tessera/common/shorten.h>

#include "optim/row_update.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"
#include "src/tables/dynamic_rows.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace tessera {

namespace {

constexpr const char* kUpdates = "key_updates";
constexpr const char* kFrequencies = "key_frequencies";
constexpr const char* kSketch = "key_sketch";
constexpr const char* kCounts = "key_counts";

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, at::ScalarType dtype) {
  const at::Tensor tensor =
      at::empty({static_cast<int64_t>(values.size())}, dtype);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<T>());
  return tensor;
}

template <class T>
std::vector<T> vector_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  const auto* begin = values.const_data_ptr<T>();
  return {begin, begin + values.numel()};
}

at::Tensor tensor_of(const KeyCounts& counts) {
  const std::vector<int64_t> values{
      counts.admitted, counts.evicted, counts.dropped};
  return tensor_of(values, at::kLong);
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> saved_tensors(
    const TableState& table) {
  const at::NoGradGuard no_grad;
  const KeyIndex& index = table.dynamic->index();
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
  const at::Tensor row_numbers = tensor_of(rows, at::kLong);
  std::vector<std::pair<std::string, at::Tensor>> tensors{
      {kSavedKeys, tensor_of(keys, at::kLong)},
      {"parameters", table.parameters.index_select(0, row_numbers)},
      {kUpdates, tensor_of(updates, at::kLong)},
      {kFrequencies, tensor_of(frequencies, at::kFloat)},
      {kSketch, tensor_of(index.sketch(), at::kByte)},
      {kCounts, tensor_of(index.counts())}};
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
      table.dynamic != nullptr,
      "{} table '{}' has a vocabulary, and no keys. Pass only values.",
      where,
      shorten(table.name));
  TESSERA_CHECK_TYPE(
      keys.defined() && keys.layout() == at::kStrided && keys.is_cpu() &&
          keys.scalar_type() == at::kLong,
      "{} table '{}': keys must be a dense int64 cpu tensor, but got {}. Convert them.",
      where,
      shorten(table.name),
      describe(keys));
  TESSERA_CHECK_TYPE(
      values.defined() && values.layout() == at::kStrided &&
          at::isFloatingType(values.scalar_type()),
      "{} table '{}': values must be a dense tensor of a floating-point type, but got {}. Convert them.",
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
  KeyIndex& index = table.dynamic->index();
  const int64_t rows = keys.numel();
  KeyCounts counts = index.counts();
  for (const int64_t key : vector_of<int64_t>(keys)) {
    counts.admitted += index.owns(key) ? 1 : 0;
  }
  const SavedTensors tensors{
      {kSavedKeys, keys},
      {"parameters",
       values.detach().to(at::kCPU, table.config->dtype).contiguous()},
      {kUpdates, at::full({rows}, update, at::kLong)},
      {kFrequencies, at::zeros({rows}, at::kFloat)},
      {kSketch, tensor_of(index.table_sketch(), at::kByte)},
      {kCounts, tensor_of(counts)}};
  LoadedKeys(tensors, table, /*with_slots=*/false, update, where)
      .copy_to(table);
  index.set_counts(counts);
}

LoadedKeys::LoadedKeys(
    const SavedTensors& tensors,
    const TableState& table,
    bool with_slots,
    int64_t update,
    const std::string& where)
    : where_(where), parameters_(tensors.at("parameters")) {
  const auto require = [&](bool holds, const std::string& problem) {
    TESSERA_CHECK_VALUE(
        holds,
        "{} the saved keys of table '{}' can't be used: {}. Nothing was changed. Load another file.",
        where,
        shorten(table.name),
        problem);
  };
  const auto find = [&](const std::string& name) {
    const auto found = tensors.find(name);
    return found == tensors.end() ? at::Tensor() : found->second;
  };
  const auto require_vector = [&](const std::string& name,
                                  const at::Tensor& values,
                                  at::ScalarType dtype,
                                  int64_t size) {
    require(
        values.defined() && values.scalar_type() == dtype &&
            values.dim() == 1 && (size < 0 || values.numel() == size),
        name + " must be a vector of " + std::to_string(size) +
            " values, but is " + describe(values));
  };
  const int64_t rows = parameters_.size(0);
  at::Tensor keys = find(kSavedKeys);
  KeyIndex& index = table.dynamic->index();
  if (!keys.defined()) {  // a table with a vocabulary
    keys = at::arange(rows, at::kLong);
    sketch_.assign(index.sketch_size(), 0);
    counts_.admitted = rows;
  } else {
    require_vector(kSavedKeys, keys, at::kLong, rows);
    require_vector(kUpdates, find(kUpdates), at::kLong, rows);
    require_vector(kFrequencies, find(kFrequencies), at::kFloat, rows);
    require_vector(kSketch, find(kSketch), at::kByte, -1);
    require_vector(kCounts, find(kCounts), at::kLong, 3);
    sketch_ = vector_of<uint8_t>(find(kSketch));
    const auto counts = vector_of<int64_t>(find(kCounts));
    counts_ = {counts[0], counts[1], counts[2]};
  }
  const auto key = vector_of<int64_t>(keys);
  const auto updates = find(kUpdates).defined()
      ? vector_of<int64_t>(find(kUpdates))
      : std::vector<int64_t>(rows, update);
  const auto frequencies = find(kFrequencies).defined()
      ? vector_of<float>(find(kFrequencies))
      : std::vector<float>(rows, 0.0F);
  for (int64_t i = 0; i < rows; ++i) {
    require(
        updates[i] >= 0 && updates[i] <= std::numeric_limits<uint32_t>::max(),
        "the last update of key " + std::to_string(key[i]) + " is " +
            std::to_string(updates[i]));
    entries_.push_back(
        {.key = key[i],
         .last_update = static_cast<uint32_t>(updates[i]),
         .frequency = frequencies[i]});
  }
  index.check(entries_, sketch_, where);
  for (const Slot& slot : table.slots) {
    const at::Tensor values =
        with_slots ? find(optim::slot_key(slot.name)) : at::Tensor();
    slots_.push_back(values);
  }
}

void LoadedKeys::copy_to(TableState& table) {
  const at::NoGradGuard no_grad;
  table.dynamic->index().assign(entries_, sketch_, counts_, where_);
  std::vector<int64_t> rows;
  std::vector<int64_t> positions;  // of the keys that this rank owns
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].row != kNoRow) {
      rows.push_back(entries_[i].row);
      positions.push_back(static_cast<int64_t>(i));
      table.dynamic->set_row_keys(entries_[i].row, entries_[i].key);
    }
  }
  const at::Tensor row_numbers = tensor_of(rows, at::kLong);
  const auto owned = [&](const at::Tensor& values) {
    return positions.size() == entries_.size()
        ? values
        : values.index_select(0, tensor_of(positions, at::kLong));
  };
  table.parameters.index_copy_(0, row_numbers, owned(parameters_));
  const auto specs = table.optimizer ? optim::slots_of(*table.optimizer)
                                     : std::vector<optim::SlotSpec>{};
  for (size_t i = 0; i < table.slots.size(); ++i) {
    at::Tensor& to = table.slots[i].values;
    if (slots_[i].defined()) {
      to.index_copy_(0, row_numbers, owned(slots_[i]));
    } else {
      to.index_fill_(0, row_numbers, specs[i].initial_value);
    }
  }
}

}  // namespace tessera
