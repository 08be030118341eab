// SPDX-License-Identifier: Apache-2.0
#include "layers/training/sampled_rows.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

at::Tensor copy_accumulators(const TableState& table, const at::Tensor& rows) {
  for (const Slot& slot : table.slots) {
    if (slot.name == "accumulators" && slot.values.defined()) {
      return copy_rows(slot.values, rows);
    }
  }
  return {};
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

SampledRows::SampledRows(const TableState& table, int64_t max_rows) {
  const int64_t count = table.parameters.size(0);
  const int64_t sampled = std::min(count, max_rows);
  rows_ = at::empty({sampled}, at::kLong);
  auto* rows = rows_.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < sampled; ++i) {
    // In doubles, because a product of two large numbers of rows could overflow.
    rows[i] = static_cast<int64_t>(
        (static_cast<double>(i) + 0.5) / static_cast<double>(sampled) *
        static_cast<double>(count));
  }
  weights_ = copy_rows(table.parameters, rows_);
  accumulators_ = copy_accumulators(table, rows_);
}

TableMovement SampledRows::compare(const TableState& table) const {
  const at::Tensor weights = copy_rows(table.parameters, rows_);
  const at::Tensor accumulators = copy_accumulators(table, rows_);
  const bool has_accumulators = accumulators_.defined() &&
      accumulators.defined() && accumulators.sizes() == accumulators_.sizes();
  std::vector<double> movements;
  std::vector<double> growths;
  const int64_t dim = weights_.size(1);
  const int64_t width = has_accumulators ? accumulators_.size(1) : 0;
  for (int64_t i = 0; i < rows_.numel(); ++i) {
    const float* before = weights_.const_data_ptr<float>() + i * dim;
    const float* now = weights.const_data_ptr<float>() + i * dim;
    bool is_touched = !std::equal(before, before + dim, now);
    const float* start = nullptr;
    const float* grown = nullptr;
    if (has_accumulators) {
      start = accumulators_.const_data_ptr<float>() + i * width;
      grown = accumulators.const_data_ptr<float>() + i * width;
      is_touched = is_touched || !std::equal(start, start + width, grown);
    }
    if (!is_touched) {
      continue;
    }
    movements.push_back(movement_of(before, now, dim));
    if (has_accumulators) {
      growths.push_back(growth_of(start, grown, width));
    }
  }
  return {
      .table = table.name,
      .sampled_rows = rows_.numel(),
      .touched_rows = static_cast<int64_t>(movements.size()),
      .movement = median(movements),
      .accumulator_growth = median(growths)};
}

}  // namespace tessera::training
