// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/sampled_rows.h"

#include "optim/row_update.h"
#include "src/common/random_key.h"
#include "src/tables/key_table_rows.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tessera::training {

namespace {

// Returns [rows, dim], or [rows, 1] if there is one number per row.
at::Tensor copy_rows(const at::Tensor& values, const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor copy =
      values.detach().index_select(0, rows).to(at::kFloat).contiguous();
  return copy.dim() == 1 ? copy.unsqueeze(1) : copy;
}

constexpr const char* kAccumulators = "accumulators";

at::Tensor copy_accumulators(const TableState& table, const at::Tensor& rows) {
  for (const Slot& slot : table.slots) {
    if (slot.name == kAccumulators && slot.values.defined()) {
      return copy_rows(slot.values, rows);
    }
  }
  return {};
}

double initial_accumulator_of(const TableState& table) {
  for (const optim::SlotSpec& slot : optim::slots_of(*table.optimizer)) {
    if (slot.name == kAccumulators) {
      return slot.initial_value;
    }
  }
  return 0.0;
}

// The order in which keys are sampled. It has nothing to do with the hash that decides
// about evictions.
uint64_t sample_hash(int64_t key) {
  return mix_bits(static_cast<uint64_t>(key) ^ 0x9E3779B97F4A7C15ULL);
}

struct SampledKeys {
  std::vector<KeyEntry> entries = {};  // in the order of their hashes
  uint64_t complete_to = std::numeric_limits<uint64_t>::max();
};

// The keys with the lowest hashes. New keys do not change which of the others are among
// them, unless there are more than `max_rows` in all.
SampledKeys sample_keys(const TableState& table, int64_t max_rows) {
  SampledKeys sampled{.entries = table.key_rows->index().entries()};
  std::vector<KeyEntry>& entries = sampled.entries;
  const auto is_before = [](const KeyEntry& a, const KeyEntry& b) {
    return sample_hash(a.key) < sample_hash(b.key);
  };
  const bool is_complete = static_cast<int64_t>(entries.size()) <= max_rows;
  if (!is_complete) {
    std::nth_element(
        entries.begin(), entries.begin() + max_rows, entries.end(), is_before);
    entries.resize(max_rows);
  }
  std::sort(entries.begin(), entries.end(), is_before);
  if (!is_complete) {
    sampled.complete_to = sample_hash(entries.back().key);
  }
  return sampled;
}

// The local row with this number in the table, or -1.
int64_t local_row_of(const LocalRows& rows, int64_t number) {
  const int64_t offset = number - rows.numbers.first;
  const int64_t row = offset / rows.numbers.step;
  const bool is_local =
      offset >= 0 && offset % rows.numbers.step == 0 && row < rows.count;
  return is_local ? row : -1;
}

// NaN if there are no values.
double median(std::vector<double>& values) {
  if (values.empty()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// |now - before| / |before|, or infinity for a row that has left zero.
double movement_of(const float* before, const float* now, int64_t dim) {
  double moved = 0.0;
  double length = 0.0;
  for (int64_t i = 0; i < dim; ++i) {
    const double difference = double{now[i]} - double{before[i]};
    moved += difference * difference;
    length += double{before[i]} * double{before[i]};
  }
  return std::sqrt(moved / length);
}

// The mean of now / before - 1.
double growth_of(const float* before, const float* now, int64_t dim) {
  double sum = 0.0;
  for (int64_t i = 0; i < dim; ++i) {
    sum += double{now[i]} / double{before[i]} - 1.0;
  }
  return sum / static_cast<double>(dim);
}

}  // namespace

// Local rows, and what they were at the start.
struct SampledRows::Matched {
  at::Tensor rows = {};  // [n] int64
  at::Tensor weights = {};  // [n, dim] float32
  at::Tensor accumulators = {};  // as in RowCopies
};

SampledRows::SampledRows(const TableState& table, int64_t max_rows) {
  copies_.max_rows = max_rows;
  at::Tensor rows;
  if (table.key_rows != nullptr) {
    const SampledKeys sampled = sample_keys(table, max_rows);
    std::vector<int64_t> keys, numbers;
    for (const KeyEntry& entry : sampled.entries) {
      keys.push_back(entry.key);
      numbers.push_back(entry.row);
    }
    copies_.complete_to = sampled.complete_to;
    copies_.ids = at::tensor(keys, at::kLong);
    rows = at::tensor(numbers, at::kLong);
  } else {
    const int64_t count = table.parameters.size(0);
    const int64_t sampled = std::min(count, max_rows);
    rows = at::empty({sampled}, at::kLong);
    copies_.ids = at::empty({sampled}, at::kLong);
    auto* row = rows.mutable_data_ptr<int64_t>();
    auto* id = copies_.ids.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < sampled; ++i) {
      // In doubles, because a product of two large numbers of rows could overflow.
      row[i] = static_cast<int64_t>(
          (static_cast<double>(i) + 0.5) / static_cast<double>(sampled) *
          static_cast<double>(count));
      id[i] = table.rows.numbers[row[i]];
    }
  }
  copies_.weights = copy_rows(table.parameters, rows);
  copies_.accumulators = copy_accumulators(table, rows);
}

SampledRows::SampledRows(
    const TableState& table,
    const std::vector<int64_t>& rows) {
  copies_.max_rows = static_cast<int64_t>(rows.size());
  std::vector<int64_t> ids;
  for (const int64_t row : rows) {
    ids.push_back(table.rows.numbers[row]);
  }
  copies_.ids = at::tensor(ids, at::kLong);
  const at::Tensor chosen = at::tensor(rows, at::kLong);
  copies_.weights = copy_rows(table.parameters, chosen);
  copies_.accumulators = copy_accumulators(table, chosen);
}

SampledRows::SampledRows(RowCopies copies) : copies_(std::move(copies)) {}

bool SampledRows::fits(const TableState& table) const {
  return copies_.weights.size(1) == table.config->dim;
}

SampledRows::Matched SampledRows::match_numbers(const TableState& table) const {
  const auto* id = copies_.ids.const_data_ptr<int64_t>();
  std::vector<int64_t> rows, positions;
  for (int64_t i = 0; i < copies_.ids.numel(); ++i) {
    if (const int64_t row = local_row_of(table.rows, id[i]); row >= 0) {
      rows.push_back(row);
      positions.push_back(i);
    }
  }
  const at::Tensor chosen = at::tensor(positions, at::kLong);
  return {
      .rows = at::tensor(rows, at::kLong),
      .weights = copies_.weights.index_select(0, chosen),
      .accumulators = copies_.accumulators.defined()
          ? copies_.accumulators.index_select(0, chosen)
          : at::Tensor()};
}

SampledRows::Matched SampledRows::match_keys(const TableState& table) const {
  std::unordered_map<int64_t, int64_t> position_of;
  const auto* id = copies_.ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < copies_.ids.numel(); ++i) {
    position_of.emplace(id[i], i);
  }
  const SampledKeys sampled = sample_keys(table, copies_.max_rows);
  std::vector<int64_t> rows, positions, new_rows, new_keys;
  for (const KeyEntry& entry : sampled.entries) {
    const auto found = position_of.find(entry.key);
    if (found != position_of.end()) {
      rows.push_back(entry.row);
      positions.push_back(found->second);
    } else if (sample_hash(entry.key) <= copies_.complete_to) {
      new_rows.push_back(entry.row);
      new_keys.push_back(entry.key);
    }  // else it may have been there at the start
  }
  const at::Tensor chosen = at::tensor(positions, at::kLong);
  at::Tensor initial = at::empty({0, table.config->dim}, at::kFloat);
  if (!new_keys.empty()) {
    // Rounded as the rows are.
    initial = table.key_rows->initial_values(new_keys)
                  .to(table.config->dtype)
                  .to(at::kFloat);
  }
  Matched matched{
      .rows = at::cat(
          {at::tensor(rows, at::kLong), at::tensor(new_rows, at::kLong)}),
      .weights = at::cat({copies_.weights.index_select(0, chosen), initial})};
  if (copies_.accumulators.defined()) {
    const at::Tensor grown = copies_.accumulators.index_select(0, chosen);
    matched.accumulators = at::cat(
        {grown,
         at::full(
             {initial.size(0), grown.size(1)},
             initial_accumulator_of(table),
             at::kFloat)});
  }
  return matched;
}

TableMovement SampledRows::compare(const TableState& table) const {
  const at::NoGradGuard no_grad;
  const Matched start =
      table.key_rows != nullptr ? match_keys(table) : match_numbers(table);
  const at::Tensor weights = copy_rows(table.parameters, start.rows);
  const at::Tensor accumulators = copy_accumulators(table, start.rows);
  const bool has_accumulators = start.accumulators.defined() &&
      accumulators.defined() &&
      accumulators.sizes() == start.accumulators.sizes();
  std::vector<double> movements;
  std::vector<double> growths;
  const int64_t dim = weights.size(1);
  const int64_t width = has_accumulators ? accumulators.size(1) : 0;
  for (int64_t i = 0; i < start.rows.numel(); ++i) {
    const float* before = start.weights.const_data_ptr<float>() + i * dim;
    const float* now = weights.const_data_ptr<float>() + i * dim;
    bool is_touched = !std::equal(before, before + dim, now);
    const float* small = nullptr;
    const float* grown = nullptr;
    if (has_accumulators) {
      small = start.accumulators.const_data_ptr<float>() + i * width;
      grown = accumulators.const_data_ptr<float>() + i * width;
      is_touched = is_touched || !std::equal(small, small + width, grown);
    }
    if (!is_touched) {
      continue;
    }
    movements.push_back(movement_of(before, now, dim));
    if (has_accumulators) {
      growths.push_back(growth_of(small, grown, width));
    }
  }
  return {
      .table = table.name,
      .sampled_rows = start.rows.numel(),
      .touched_rows = static_cast<int64_t>(movements.size()),
      .movement = median(movements),
      .accumulator_growth = median(growths)};
}

RowCopies merged(const std::vector<RowCopies>& parts) {
  RowCopies all = parts.at(0);
  std::unordered_set<int64_t> seen;
  std::vector<at::Tensor> ids, weights, accumulators;
  for (const RowCopies& part : parts) {
    const auto* id = part.ids.const_data_ptr<int64_t>();
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < part.ids.numel(); ++i) {
      if (seen.insert(id[i]).second) {
        positions.push_back(i);
      }
    }
    const at::Tensor chosen = at::tensor(positions, at::kLong);
    ids.push_back(part.ids.index_select(0, chosen));
    weights.push_back(part.weights.index_select(0, chosen));
    if (part.accumulators.defined()) {
      accumulators.push_back(part.accumulators.index_select(0, chosen));
    }
    all.complete_to = std::min(all.complete_to, part.complete_to);
  }
  all.ids = at::cat(ids);
  all.weights = at::cat(weights);
  all.accumulators = accumulators.size() == parts.size() ? at::cat(accumulators)
                                                         : at::Tensor();
  return all;
}

}  // namespace tessera::training
