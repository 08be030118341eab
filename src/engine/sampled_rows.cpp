// SPDX-License-Identifier: Apache-2.0
#include "src/engine/sampled_rows.h"

#include "optim/row_update.h"
#include "src/common/random_key.h"
#include "src/tables/key_table_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera {

namespace {

constexpr double kMinGrowth = 0.01;
constexpr const char* kAccumulators = "accumulators";

// Returns [rows, dim], or [rows, 1] if there is one number per row.
at::Tensor copy_rows(const at::Tensor& values, const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor copy =
      values.detach().index_select(0, rows).to(at::kFloat).contiguous();
  return copy.dim() == 1 ? copy.unsqueeze(1) : copy;
}

at::Tensor copy_accumulators(const TableState& table, const at::Tensor& rows) {
  for (const Slot& slot : table.slots) {
    if (slot.name == kAccumulators && slot.values.defined()) {
      return copy_rows(slot.values, rows);
    }
  }
  return at::empty({rows.numel(), 0}, at::kFloat);
}

// Local rows. `ids` may be missing for a comparison.
RowCopies copy(
    const TableState& table,
    const std::vector<int64_t>& rows,
    const std::vector<int64_t>& ids = {}) {
  const at::Tensor chosen = at::tensor(rows, at::kLong);
  return {
      .table = table.name,
      .ids = at::tensor(ids, at::kLong),
      .weights = copy_rows(table.parameters, chosen),
      .accumulators = copy_accumulators(table, chosen)};
}

// Copies local rows of a table without keys.
RowCopies copy_numbers(
    const TableState& table,
    const std::vector<int64_t>& rows) {
  std::vector<int64_t> ids;
  for (const int64_t row : rows) {
    ids.push_back(table.rows.numbers[row]);
  }
  return copy(table, rows, ids);
}

RowCopies select(RowCopies copies, const std::vector<int64_t>& positions) {
  const at::Tensor chosen = at::tensor(positions, at::kLong);
  for (at::Tensor* values :
       {&copies.ids, &copies.weights, &copies.accumulators}) {
    *values = values->index_select(0, chosen);
  }
  return copies;
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

// Returns the keys with the lowest hashes. New keys do not change which of the older keys
// are returned, unless the table has more than `max_rows` keys.
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

// The median of the values that count, or NaN if there are none.
double median(const at::Tensor& values, const at::Tensor& counts) {
  const at::Tensor sorted = std::get<0>(values.masked_select(counts).sort());
  return sorted.numel() == 0 ? std::numeric_limits<double>::quiet_NaN()
                             : sorted[sorted.numel() / 2].item<double>();
}

}  // namespace

bool has_hardly_grown(const TableMovement& found) {
  return found.touched_rows >= kMinTouchedRows &&
      found.accumulator_growth < kMinGrowth;
}

double initial_accumulator_of(const TableState& table) {
  if (table.optimizer && !optim::slot_creation_of(*table.optimizer).is_set()) {
    for (const optim::SlotSpec& slot : optim::slots_of(*table.optimizer)) {
      if (slot.name == kAccumulators) {
        return slot.initial_value;
      }
    }
  }
  return 0.0;
}

SampledRows::SampledRows(const TableState& table, int64_t max_rows) {
  std::vector<int64_t> rows, keys;
  if (table.key_rows != nullptr) {
    const SampledKeys sampled = sample_keys(table, max_rows);
    for (const KeyEntry& entry : sampled.entries) {
      rows.push_back(entry.row);
      keys.push_back(entry.key);
    }
    copies_ = copy(table, rows, keys);
    copies_.complete_to = sampled.complete_to;
  } else {
    const int64_t count = table.parameters.size(0);
    const int64_t sampled = std::min(count, max_rows);
    for (int64_t i = 0; i < sampled; ++i) {
      // In doubles, because a product of two large numbers of rows could overflow.
      rows.push_back(static_cast<int64_t>(
          (static_cast<double>(i) + 0.5) / static_cast<double>(sampled) *
          static_cast<double>(count)));
    }
    copies_ = copy_numbers(table, rows);
  }
  copies_.max_rows = max_rows;
}

SampledRows::SampledRows(
    const TableState& table,
    const std::vector<int64_t>& rows)
    : copies_(copy_numbers(table, rows)) {}

// Returns local rows, and what they were at the start.
std::pair<std::vector<int64_t>, RowCopies> SampledRows::match(
    const TableState& table) const {
  const auto* id = copies_.ids.const_data_ptr<int64_t>();
  std::vector<int64_t> rows, positions, new_rows, new_keys;
  if (table.key_rows == nullptr) {
    for (int64_t i = 0; i < copies_.ids.numel(); ++i) {
      if (const int64_t row = local_row_of(table.rows, id[i]); row >= 0) {
        rows.push_back(row);
        positions.push_back(i);
      }
    }
  } else {
    std::unordered_map<int64_t, int64_t> position_of;
    for (int64_t i = 0; i < copies_.ids.numel(); ++i) {
      position_of.emplace(id[i], i);
    }
    const SampledKeys sampled = sample_keys(table, copies_.max_rows);
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
  }
  RowCopies start = select(copies_, positions);
  if (!new_keys.empty()) {
    rows.insert(rows.end(), new_rows.begin(), new_rows.end());
    // Rounded as the rows are.
    const at::Tensor initial = table.key_rows->initial_values(new_keys)
                                   .to(table.config->dtype)
                                   .to(at::kFloat);
    start.weights = at::cat({start.weights, initial});
    start.accumulators = at::cat(
        {start.accumulators,
         at::full(
             {initial.size(0), start.accumulators.size(1)},
             initial_accumulator_of(table),
             at::kFloat)});
  }
  return {std::move(rows), std::move(start)};
}

TableMovement SampledRows::compare(const TableState& table) const {
  const at::NoGradGuard no_grad;
  auto [rows, start] = match(table);
  RowCopies now = copy(table, rows);
  if (now.accumulators.sizes() != start.accumulators.sizes()) {
    // The slots were made meanwhile.
    now.accumulators = start.accumulators = now.accumulators.narrow(1, 0, 0);
  }
  const at::Tensor has_moved = (now.weights != start.weights).any(1);
  const at::Tensor is_touched =
      has_moved.logical_or((now.accumulators != start.accumulators).any(1));
  const at::Tensor before = start.weights.to(at::kDouble);
  return {
      .table = table.name,
      .sampled_rows = before.size(0),
      .touched_rows = is_touched.sum().item<int64_t>(),
      .moved_rows = has_moved.sum().item<int64_t>(),
      .movement = median(
          (now.weights - before).norm(2, 1) / before.norm(2, 1), is_touched),
      .accumulator_growth = median(
          (now.accumulators / start.accumulators.to(at::kDouble) - 1.0).mean(1),
          is_touched)};
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
    const RowCopies own = select(part, positions);
    ids.push_back(own.ids);
    weights.push_back(own.weights);
    accumulators.push_back(own.accumulators);
    all.complete_to = std::min(all.complete_to, part.complete_to);
  }
  all.ids = at::cat(ids);
  all.weights = at::cat(weights);
  all.accumulators = at::cat(accumulators);
  return all;
}

}  // namespace tessera
