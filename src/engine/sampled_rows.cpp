// SPDX-License-Identifier: Apache-2.0
#include "src/engine/sampled_rows.h"

#include "optim/row_update.h"
#include "src/common/random_key.h"
#include "src/engine/table_update.h"
#include "src/tables/key_table_rows.h"
#include "src/tables/table_state.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <exception>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tessera {

namespace {

constexpr double kMinGrowth = 0.01;
constexpr const char* kAccumulators = "accumulators";

// Returns [rows, dim], or [rows, 1] if there is one number per row.
at::Tensor copy_rows(const at::Tensor& values, const at::Tensor& rows) {
  const at::Tensor copy =
      float_rows(values.detach().index_select(0, rows)).contiguous();
  return copy.dim() == 1 ? copy.unsqueeze(1) : copy;
}

// Copies local rows. compare() passes no `ids`, because it does not use them.
SampledRows copy(
    const TableState& table,
    const std::vector<int64_t>& rows,
    const std::vector<int64_t>& ids = {}) {
  const at::NoGradGuard no_grad;
  const at::Tensor chosen = at::tensor(rows, at::kLong);
  SampledRows copies{
      .table = table.name,
      .ids = at::tensor(ids, at::kLong),
      .weights = copy_rows(table.parameters, chosen),
      .accumulators = at::empty({chosen.numel(), 0}, at::kFloat)};
  for (const Slot& slot : table.slots) {
    if (slot.name == kAccumulators && slot.values.defined()) {
      copies.accumulators = copy_rows(slot.values, chosen);
    }
  }
  return copies;
}

// The order in which keys are sampled. It has nothing to do with the hash that decides
// about evictions.
uint64_t sample_hash(int64_t key) {
  return mix_bits(static_cast<uint64_t>(key) ^ 0x9E3779B97F4A7C15ULL);
}

// Returns the keys with the lowest hashes, in their order. New keys do not change which of
// the older keys are returned, unless the table has more than `max_rows` keys.
std::vector<KeyEntry> sample_keys(const TableState& table, int64_t max_rows) {
  std::vector<KeyEntry> entries = table.key_rows->index().entries();
  const auto count = std::min(max_rows, std::ssize(entries));
  std::ranges::partial_sort(
      entries, entries.begin() + count, {}, [](const KeyEntry& entry) {
        return sample_hash(entry.key);
      });
  entries.resize(count);
  return entries;
}

// The local row with this number in the table, or -1.
int64_t local_row_of(const LocalRows& rows, int64_t number) {
  const int64_t offset = number - rows.numbers.first;
  const int64_t row = offset / rows.numbers.step;
  const bool is_local =
      offset >= 0 && offset % rows.numbers.step == 0 && row < rows.count;
  return is_local ? row : -1;
}

// The median of the values where `counts` is true, or NaN if there are none.
double median(const at::Tensor& values, const at::Tensor& counts) {
  const at::Tensor sorted = std::get<0>(values.masked_select(counts).sort());
  return sorted.numel() == 0 ? std::numeric_limits<double>::quiet_NaN()
                             : sorted[sorted.numel() / 2].item<double>();
}

// Calls visit(row) for each row that gets a gradient other than zero. Of a term, only the
// first kMaxSampledRows bags are read.
template <class Visit>
void visit_rows_with_gradient(const TableUpdate& update, const Visit& visit) {
  for (const TableUpdate::Term& term : update.terms) {
    const IdBags& bags = *term.bags;
    for (int64_t bag = 0; bag < std::min(bags.bags, kMaxSampledRows); ++bag) {
      const int64_t source =
          term.positions == nullptr ? bag : int64_t{term.positions[bag]};
      const float* gradient = term.gradient + source * term.stride;
      const bool is_zero = std::all_of(
          gradient, gradient + bags.dim, [](float g) { return g == 0.0F; });
      for (int64_t i = bags.begin(bag); i < bags.end(bag) && !is_zero; ++i) {
        const bool has_weight = bags.weights.empty() || bags.weights[i] != 0.0F;
        if (term.ids()[i] != kNoRow && has_weight) {
          visit(int64_t{term.ids()[i]});
        }
      }
    }
  }
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
        const at::ScalarType dtype =
            slot_dtype_of(*table.config, slot.is_per_row);
        return at::full({}, slot.initial_value, dtype).item<double>();
      }
    }
  }
  return 0.0;
}

SampledRows sample_rows(const TableState& table, int64_t max_rows) {
  std::vector<int64_t> rows, ids;
  if (table.key_rows != nullptr) {
    for (const KeyEntry& entry : sample_keys(table, max_rows)) {
      rows.push_back(entry.row);
      ids.push_back(entry.key);
    }
  } else {
    const int64_t count = table.parameters.size(0);
    const int64_t sampled = std::min(count, max_rows);
    for (int64_t i = 0; i < sampled; ++i) {
      // In doubles, because a product of two large numbers of rows could overflow.
      rows.push_back(static_cast<int64_t>(
          (static_cast<double>(i) + 0.5) / static_cast<double>(sampled) *
          static_cast<double>(count)));
      ids.push_back(table.rows.numbers[rows.back()]);
    }
  }
  SampledRows copies = copy(table, rows, ids);
  copies.max_rows = max_rows;
  if (table.key_rows != nullptr && table.key_rows->index().size() > max_rows) {
    copies.complete_to = sample_hash(ids.back());
  }
  return copies;
}

SampledRows no_rows(const TableState& table) {
  return copy(table, {});
}

void add_rows_with_gradient(
    const TableUpdate& update,
    SampledRows& rows) noexcept try {
  if (rows.ids.numel() == rows.max_rows ||
      rows.ids.numel() == update.table->rows.count ||
      ++rows.updates > kMinUpdates) {
    return;
  }
  const auto* ids = rows.ids.const_data_ptr<int64_t>();
  std::unordered_set<int64_t> known(ids, ids + rows.ids.numel());
  std::vector<int64_t> added, added_ids;
  visit_rows_with_gradient(update, [&](int64_t row) {
    const int64_t id = update.table->rows.numbers[row];
    if (std::ssize(known) < rows.max_rows && known.insert(id).second) {
      added.push_back(row);
      added_ids.push_back(id);
    }
  });
  if (!added.empty()) {
    rows = joined(rows, copy(*update.table, added, added_ids));
  }
} catch (const std::exception&) {
}

SampledRows joined(const SampledRows& first, const SampledRows& second) {
  return {
      .table = first.table,
      .ids = at::cat({first.ids, second.ids}),
      .weights = at::cat({first.weights, second.weights}),
      .accumulators = at::cat({first.accumulators, second.accumulators}),
      .complete_to = std::min(first.complete_to, second.complete_to),
      .max_rows = first.max_rows,
      .updates = first.updates};
}

TableMovement compare(const SampledRows& start, const TableState& table) {
  const at::NoGradGuard no_grad;
  std::unordered_map<int64_t, int64_t> position_of;
  for (int64_t i = 0; i < start.ids.numel(); ++i) {
    position_of.emplace(start.ids.const_data_ptr<int64_t>()[i], i);
  }
  std::vector<int64_t> rows, positions, new_rows, new_keys;
  if (table.key_rows == nullptr) {
    for (const auto& [id, position] : position_of) {
      if (const int64_t row = local_row_of(table.rows, id); row >= 0) {
        rows.push_back(row);
        positions.push_back(position);
      }
    }
  } else {
    for (const KeyEntry& entry : sample_keys(table, start.max_rows)) {
      if (const auto found = position_of.find(entry.key);
          found != position_of.end()) {
        rows.push_back(entry.row);
        positions.push_back(found->second);
      } else if (sample_hash(entry.key) <= start.complete_to) {
        new_rows.push_back(entry.row);
        new_keys.push_back(entry.key);
      }  // else it may have been there at the start
    }
  }
  const at::Tensor chosen = at::tensor(positions, at::kLong);
  at::Tensor old_weights = start.weights.index_select(0, chosen);
  at::Tensor old_accumulators = start.accumulators.index_select(0, chosen);
  if (!new_keys.empty()) {
    rows.insert(rows.end(), new_rows.begin(), new_rows.end());
    // The rows were rounded to the table's dtype, too.
    const at::Tensor initial = float_rows(rows_of_dtype(
        table.key_rows->initial_values(new_keys), table.config->dtype));
    old_weights = at::cat({old_weights, initial});
    old_accumulators = at::cat(
        {old_accumulators,
         at::full(
             {initial.size(0), old_accumulators.size(1)},
             initial_accumulator_of(table),
             at::kFloat)});
  }
  const SampledRows now = copy(table, rows);
  const at::Tensor& weights = now.weights;
  at::Tensor accumulators = now.accumulators;
  if (accumulators.sizes() != old_accumulators.sizes()) {
    // The slots were made after the copies in `start`.
    accumulators = old_accumulators = accumulators.narrow(1, 0, 0);
  }
  const at::Tensor has_moved = (weights != old_weights).any(1);
  const at::Tensor is_touched =
      has_moved.logical_or((accumulators != old_accumulators).any(1));
  const at::Tensor before = old_weights.to(at::kDouble);
  return {
      .table = table.name,
      .sampled_rows = before.size(0),
      .touched_rows = is_touched.sum().item<int64_t>(),
      .moved_rows = has_moved.sum().item<int64_t>(),
      .movement =
          median((weights - before).norm(2, 1) / before.norm(2, 1), is_touched),
      .accumulator_growth = median(
          (accumulators / old_accumulators.to(at::kDouble) - 1.0).mean(1),
          is_touched)};
}

}  // namespace tessera
