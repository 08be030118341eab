// SPDX-License-Identifier: Apache-2.0
#include "src/engine/accumulated_gradients.h"

#include "optim/row_update.h"
#include "src/common/check.h"
#include "src/tables/key_table_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace tessera {

namespace {

// Converts the sum that an optimizer on the host has collected.
AccumulatedGradients gradients_of(const at::Tensor& sum) {
  if (sum.layout() == at::kSparse) {
    return {.rows = sum._indices().select(0, 0), .sums = sum._values()};
  }
  const at::Tensor rows = sum.ne(0.0).any(1).nonzero().flatten();
  return {.rows = rows, .sums = sum.index_select(0, rows)};
}

at::Tensor tensor_of_integers(const auto& values) {
  at::Tensor tensor = at::empty({std::ssize(values)}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

AccumulatedGradients gradients_of(
    const GradientAccumulator& accumulator,
    int64_t dim) {
  const c10::ArrayRef<float> sums = accumulator.sums();
  return {
      .rows = tensor_of_integers(accumulator.rows()),
      .sums = at::tensor(sums, at::kFloat).view({-1, dim})};
}

c10::ArrayRef<int64_t> integers_in(const at::Tensor& values) {
  return {
      values.const_data_ptr<int64_t>(), static_cast<size_t>(values.numel())};
}

// Keeps the keys at some ascending positions, and their gradients.
AccumulatedGradients select_keys(
    const AccumulatedGradients& gradients,
    const std::vector<int64_t>& positions) {
  const at::Tensor kept = tensor_of_integers(positions);
  const at::Tensor new_position =
      at::full_like(gradients.keys, -1)
          .index_copy_(0, kept, at::arange(kept.numel(), at::kLong));
  const at::Tensor rows = new_position.index_select(0, gradients.rows);
  const at::Tensor chosen = rows.ge(0).nonzero().flatten();
  return {
      .rows = rows.index_select(0, chosen),
      .sums = gradients.sums.index_select(0, chosen),
      .keys = gradients.keys.index_select(0, kept),
      .counts = gradients.counts.index_select(0, kept),
      .dropped = gradients.dropped};
}

// Adds the collected keys in the order of their hashes. `collected` has them in the order
// in which they occurred.
AccumulatedGradients with_keys(
    AccumulatedGradients gradients,
    const CollectedKeys& collected) {
  std::vector<int64_t> order(collected.keys.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::sort(order, [&](int64_t a, int64_t b) {
    return hash_of_key(collected.keys[a]) < hash_of_key(collected.keys[b]);
  });
  const at::Tensor old_position = tensor_of_integers(order);
  const auto sorted = [&](const auto& values) {
    return tensor_of_integers(values).index_select(0, old_position);
  };
  gradients.keys = sorted(collected.keys);
  gradients.counts = sorted(collected.counts);
  gradients.rows = old_position.argsort().index_select(0, gradients.rows);
  gradients.dropped = collected.dropped;
  return gradients;
}

}  // namespace

int64_t accumulation_steps_of(const TableState& table) {
  return table.optimizer
      ? optim::gradient_accumulation_steps_of(*table.optimizer)
      : 1;
}

bool is_accumulating(const EmbeddingState& state, const TableState& table) {
  return state.with_slots == WithSlots::kYes &&
      state.passes % accumulation_steps_of(table) != 0;
}

int64_t updates_applied(const EmbeddingState& state) {
  int64_t steps = std::numeric_limits<int64_t>::max();
  for (const TableState& table : state.tables) {
    if (table.optimizer) {
      steps = std::min(steps, accumulation_steps_of(table));
    }
  }
  const bool is_trained = steps != std::numeric_limits<int64_t>::max();
  return is_trained ? state.passes / steps : state.passes;
}

AccumulatedGradients accumulated_gradients(
    const EmbeddingState& state,
    size_t index) {
  const TableState& table = state.tables[index];
  AccumulatedGradients gradients;
  const int64_t dim = table.config->dim;
  if (table.gradient_sum == nullptr) {
    gradients = gradients_of(state.accumulated[index], dim);
  } else if (table.gradient_sum->defined()) {
    gradients = gradients_of(*table.gradient_sum);
  } else {
    gradients = gradients_of(GradientAccumulator(), dim);
  }
  if (table.key_rows != nullptr) {
    gradients =
        with_keys(std::move(gradients), state.accumulated[index].keys());
  }
  // In a TableStore, the order depends on the distribution of ids over tasks.
  const auto [rows, order] = gradients.rows.sort();
  const kernels::RowNumbers numbers = table.rows.numbers;
  gradients.rows =
      table.key_rows != nullptr ? rows : rows * numbers.step + numbers.first;
  gradients.sums = gradients.sums.index_select(0, order);
  return gradients;
}

AccumulatedGradients local_part(
    const AccumulatedGradients& gradients,
    const TableState& table) {
  if (table.key_rows != nullptr) {
    const KeyIndex& index = table.key_rows->index();
    std::vector<int64_t> positions;
    const c10::ArrayRef<int64_t> keys = integers_in(gradients.keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (index.owns(keys[i])) {
        positions.push_back(static_cast<int64_t>(i));
      }
    }
    AccumulatedGradients local = select_keys(gradients, positions);
    // As in KeyIndex::assign(), the owner of the first partition takes the whole count.
    local.dropped = index.owned().count() > 0 && index.owned().begin == 0
        ? local.dropped
        : 0;
    return local;
  }
  const LocalRows& rows = table.rows;
  const int64_t step = rows.numbers.step;
  const at::Tensor offsets = gradients.rows - rows.numbers.first;
  const at::Tensor is_local = offsets.ge(0)
                                  .logical_and(offsets.remainder(step).eq(0))
                                  .logical_and(offsets.lt(rows.count * step));
  const at::Tensor chosen = is_local.nonzero().flatten();
  return {
      .rows = gradients.rows.index_select(0, chosen),
      .sums = gradients.sums.index_select(0, chosen)};
}

void check_accumulated(
    const AccumulatedGradients& gradients,
    const TableState& table,
    const std::string& where) {
  const at::Tensor& rows = gradients.rows;
  const at::Tensor& sums = gradients.sums;
  const auto require = [&](bool holds, const char* what) {
    TESSERA_CHECK_VALUE(
        holds,
        "{} table '{}': the saved gradients that gradient_accumulation_steps has collected are damaged: {}. Load another file, or load no slots with LoadOptions{{.slots = false}}. load() and load_checkpoint() of the layer take LoadOptions, but torch::load() and load_weights() do not.",
        where,
        shorten(table.name),
        what);
  };
  require(
      rows.defined() && rows.scalar_type() == at::kLong && rows.dim() == 1,
      "their rows must be int64 [n]");
  require(
      sums.defined() && sums.scalar_type() == at::kFloat && sums.dim() == 2 &&
          sums.size(0) == rows.size(0) && sums.size(1) == table.config->dim,
      "their sums must be float32 [n, dim]");
  const int64_t count = rows.size(0);
  int64_t end = table.config->vocabulary_size;
  if (table.key_rows != nullptr) {
    const at::Tensor& keys = gradients.keys;
    const at::Tensor& counts = gradients.counts;
    require(
        keys.defined() && keys.scalar_type() == at::kLong && keys.dim() == 1 &&
            counts.defined() && counts.scalar_type() == at::kLong &&
            counts.sizes() == keys.sizes() && gradients.dropped >= 0,
        "their keys and counts must be int64 [keys]");
    const c10::ArrayRef<int64_t> key = integers_in(keys.contiguous());
    require(
        std::ranges::adjacent_find(key, std::greater_equal{}, hash_of_key) ==
            key.end(),
        "their keys must be in the order of their hashes, each of them once");
    require(
        counts.ge(1).all().item<bool>() &&
            counts.lt(std::numeric_limits<uint32_t>::max()).all().item<bool>(),
        "their counts must be in [1, 2^32 - 1)");
    end = keys.numel();
  }
  require(
      rows.ge(0).all().item<bool>() && rows.lt(end).all().item<bool>(),
      "their rows must be in [0, vocabulary_size)");
  require(
      count < 2 ||
          rows.slice(0, 1).gt(rows.slice(0, 0, count - 1)).all().item<bool>(),
      "their rows must be in ascending order");
}

void set_accumulated(
    EmbeddingState& state,
    size_t index,
    const AccumulatedGradients& gradients,
    int64_t passes) {
  TableState& table = state.tables[index];
  const AccumulatedGradients local = local_part(gradients, table);
  const at::Tensor sums = local.sums.contiguous();
  at::Tensor rows = local.rows;
  if (table.key_rows == nullptr) {
    const kernels::RowNumbers numbers = table.rows.numbers;
    rows = (rows - numbers.first)
               .div(numbers.step, "floor")
               .to(at::kLong)
               .contiguous();
  }
  if (table.gradient_sum != nullptr) {
    *table.gradient_sum =
        at::sparse_coo_tensor(
            rows.unsqueeze(0), sums, {table.rows.count, table.config->dim})
            ._coalesced_(true);
    return;
  }
  const c10::ArrayRef<int64_t> row = integers_in(rows);
  const float* sum = sums.const_data_ptr<float>();
  RowGradients by_row;
  by_row.rows.assign(row.begin(), row.end());
  by_row.sums.assign(sum, sum + sums.numel());
  state.accumulated[index] =
      GradientAccumulator(std::move(by_row), table.config->dim, passes);
  if (table.key_rows != nullptr) {
    const c10::ArrayRef<int64_t> keys = integers_in(local.keys);
    const c10::ArrayRef<int64_t> counts = integers_in(local.counts);
    CollectedKeys collected{.dropped = local.dropped};
    collected.keys.assign(keys.begin(), keys.end());
    collected.counts.assign(counts.begin(), counts.end());
    state.accumulated[index].set_keys(std::move(collected));
  }
}

void clear_accumulated(EmbeddingState& state, size_t index) {
  state.accumulated[index].clear();
  const auto& gradient_sum = state.tables[index].gradient_sum;
  if (gradient_sum != nullptr) {
    *gradient_sum = at::Tensor();
  }
}

}  // namespace tessera
