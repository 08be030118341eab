// SPDX-License-Identifier: Apache-2.0
#include "optim/dense_update.h"

#include <tessera/optim/optimizers.h>

#include "src/common/active_kernels.h"
#include "src/common/buffer.h"
#include "src/common/parallel.h"

#include <algorithm>
#include <limits>
#include <variant>

namespace tessera::optim {

namespace {

// If a rule updates each number by itself, the parameter may be cut into rows of any length.
constexpr int64_t kRowLength = 256;

// How many numbers a task updates.
constexpr int64_t kTaskLength = 8 * 1024;

bool is_plain(const at::Tensor& tensor, at::IntArrayRef shape) {
  return tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() &&
      tensor.layout() == at::kStrided && tensor.is_contiguous() &&
      !tensor.is_neg() && !tensor._is_zerotensor() && tensor.sizes() == shape;
}

// Returns whether all tensors are plain and fit each other.
bool are_plain(
    const at::Tensor& gradient,
    const TensorRows& rows,
    const std::vector<SlotSpec>& slots) {
  const at::IntArrayRef shape = rows.weights.sizes();
  bool result = is_plain(rows.weights, shape) && is_plain(gradient, shape);
  for (size_t i = 0; i < slots.size() && result; ++i) {
    result = is_plain(rows.slots[i], slot_shape(slots[i], shape));
  }
  return result;
}

bool needs_whole_rows(const kernels::RowRule& rule) {
  return std::holds_alternative<kernels::RowWiseAdagradRule>(rule) ||
      std::holds_alternative<kernels::LambRule>(rule);
}

}  // namespace

bool DenseUpdate::add(
    const OptimizerSpec& spec,
    const StepContext& context,
    const at::Tensor& gradient,
    const TensorRows& rows) {
  const std::vector<SlotSpec> slots = slots_of(spec);
  if (spec.get_if<CustomOptimizer>() != nullptr ||
      !are_plain(gradient, rows, slots)) {
    return false;
  }
  Part whole{
      .update = row_update(spec, context),
      .gradient = gradient.const_data_ptr<float>()};
  const int64_t length = rows.weights.numel();
  const int64_t dim = !needs_whole_rows(whole.update.rule) ? kRowLength
      : rows.weights.dim() == 0                            ? 1
                                : rows.weights.size(-1);
  const int64_t vocab = dim == 0 ? 0 : length / dim;
  const int64_t rest = length - vocab * dim;
  if (vocab > std::numeric_limits<uint32_t>::max() ||
      shares_memory(gradient, rows.weights)) {
    return false;
  }
  written_.add(rows.weights);
  read_.add(gradient);
  whole.args.stages = whole.update.stages;
  whole.args.table = {
      .data = rows.weights.mutable_data_ptr<float>(),
      .dim = dim,
      .vocab = vocab};
  for (size_t i = 0; i < slots.size(); ++i) {
    whole.args.slots[slots[i].position] =
        rows.slots[i].mutable_data_ptr<float>();
    rows.slots[i].unsafeGetTensorImpl()->bump_version();
  }
  // Autograd then notices that the weights have changed.
  rows.weights.unsafeGetTensorImpl()->bump_version();
  if (vocab > 0) {
    add_part(whole);
  }
  if (rest > 0) {
    Part last = whole;
    last.gradient += vocab * dim;
    last.args.table.data =
        static_cast<float*>(last.args.table.data) + vocab * dim;
    last.args.table.dim = rest;
    last.args.table.vocab = 1;
    for (float*& slot : last.args.slots) {
      slot += slot == nullptr ? 0 : vocab * dim;
    }
    add_part(last);
  }
  // Weights and slots are written, too.
  bytes_ +=
      length * static_cast<int64_t>((3 + 2 * slots.size()) * sizeof(float));
  return true;
}

bool DenseUpdate::shares_memory(
    const at::Tensor& gradient,
    const at::Tensor& weights) const {
  MemoryRanges own;
  own.add(weights);
  const bool is_shifted = own.overlap(gradient) &&
      weights.const_data_ptr() != gradient.const_data_ptr();
  return is_shifted || written_.overlap(weights) ||
      written_.overlap(gradient) || read_.overlap(weights);
}

void DenseUpdate::add_part(const Part& part) {
  const int64_t vocab = part.args.table.vocab;
  const int64_t rows = std::max<int64_t>(
      1, kTaskLength / std::max<int64_t>(1, part.args.table.dim));
  for (int64_t begin = 0; begin < vocab; begin += rows) {
    tasks_.push_back(
        {.part = parts_.size(),
         .begin_row = begin,
         .end_row = std::min(vocab, begin + rows)});
  }
  parts_.push_back(part);
}

void DenseUpdate::run() const {
  run_tasks(static_cast<int64_t>(tasks_.size()), bytes_, [&](int64_t i) {
    run(tasks_[static_cast<size_t>(i)]);
  });
}

void DenseUpdate::run(const Task& task) const {
  const Part& part = parts_[task.part];
  const int64_t dim = part.args.table.dim;
  const auto count = static_cast<size_t>(task.end_row - task.begin_row);
  std::vector<kernels::Contribution> contributions(count);
  std::vector<kernels::GradientSource> sources(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t row = task.begin_row + static_cast<int64_t>(i);
    contributions[i] = {
        .row = static_cast<uint32_t>(row), .source = static_cast<uint32_t>(i)};
    sources[i] = {.gradient = part.gradient + row * dim, .factor = 1.0F};
  }
  thread_local Buffer<float> scratch;
  scratch.resize(static_cast<size_t>(3 * dim));
  kernels::UpdateArgs args = part.args;
  args.contributions = contributions.data();
  args.count = static_cast<int64_t>(count);
  args.sources = sources.data();
  args.gradient = scratch.data();
  args.direction = scratch.data() + dim;
  args.weights = scratch.data() + 2 * dim;
  args.accumulate = false;  // each row occurs once
  active_kernels().update(args, part.update.rule);
}

}  // namespace tessera::optim
