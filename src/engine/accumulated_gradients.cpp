// SPDX-License-Identifier: Apache-2.0
#include "src/engine/accumulated_gradients.h"

#include "optim/row_update.h"
#include "src/common/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <algorithm>
#include <limits>
#include <utility>

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

AccumulatedGradients gradients_of(
    const GradientAccumulator& accumulator,
    int64_t dim) {
  const auto count = static_cast<int64_t>(accumulator.rows().size());
  at::Tensor rows = at::empty({count}, at::kLong);
  at::Tensor sums = at::empty({count, dim}, at::kFloat);
  std::copy(
      accumulator.rows().begin(),
      accumulator.rows().end(),
      rows.mutable_data_ptr<int64_t>());
  std::copy(
      accumulator.sums().begin(),
      accumulator.sums().end(),
      sums.mutable_data_ptr<float>());
  return {.rows = std::move(rows), .sums = std::move(sums)};
}

}  // namespace

int64_t accumulation_steps_of(const TableState& table) {
  return table.optimizer
      ? optim::gradient_accumulation_steps_of(*table.optimizer)
      : 1;
}

bool is_accumulating(const EmbeddingState& state, const TableState& table) {
  return state.with_slots == WithSlots::kYes &&
      state.iterations % accumulation_steps_of(table) != 0;
}

int64_t updates_applied(const EmbeddingState& state) {
  int64_t steps = std::numeric_limits<int64_t>::max();
  for (const TableState& table : state.tables) {
    if (table.optimizer) {
      steps = std::min(steps, accumulation_steps_of(table));
    }
  }
  const bool is_trained = steps != std::numeric_limits<int64_t>::max();
  return is_trained ? state.iterations / steps : state.iterations;
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
  // On the engine, the order depends on the distribution of ids over tasks.
  const auto [rows, order] = gradients.rows.sort();
  const kernels::RowNumbers numbers = table.rows.numbers;
  return {
      .rows = rows * numbers.step + numbers.first,
      .sums = gradients.sums.index_select(0, order)};
}

AccumulatedGradients local_part(
    const AccumulatedGradients& gradients,
    const LocalRows& rows) {
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
  require(
      rows.ge(0).all().item<bool>() &&
          rows.lt(table.config->vocabulary_size).all().item<bool>(),
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
  const AccumulatedGradients local = local_part(gradients, table.rows);
  const at::Tensor sums = local.sums.contiguous();
  const kernels::RowNumbers numbers = table.rows.numbers;
  const at::Tensor rows = (local.rows - numbers.first)
                              .div(numbers.step, "floor")
                              .to(at::kLong)
                              .contiguous();
  if (table.gradient_sum != nullptr) {
    *table.gradient_sum =
        at::sparse_coo_tensor(rows.unsqueeze(0), sums, table.parameters.sizes())
            ._coalesced_(true);
    return;
  }
  const int64_t* row = rows.const_data_ptr<int64_t>();
  const float* sum = sums.const_data_ptr<float>();
  RowGradients by_row;
  by_row.rows.assign(row, row + rows.numel());
  by_row.sums.assign(sum, sum + sums.numel());
  state.accumulated[index] =
      GradientAccumulator(std::move(by_row), table.config->dim, passes);
}

void clear_accumulated(EmbeddingState& state, size_t index) {
  state.accumulated[index].clear();
  const auto& gradient_sum = state.tables[index].gradient_sum;
  if (gradient_sum != nullptr) {
    *gradient_sum = at::Tensor();
  }
}

}  // namespace tessera
