// SPDX-License-Identifier: Apache-2.0
#include "src/engine/pending_gradients.h"

#include <tessera/common/profile_scope.h>

#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/engine/finite_gradients.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace tessera {

namespace {

// The sum of two parts, or the larger one for p = infinity. NaN if one of them is NaN.
double combined(double a, double b, double p) {
  if (!std::isinf(p)) {
    return a + b;
  }
  return std::isnan(a) || a > b ? a : b;
}

// Combines |value|^p over a range, or |value| for p = infinity.
double part_of_norm(const float* values, int64_t count, double p) {
  double part = 0.0;
  for (int64_t i = 0; i < count && !std::isnan(part); ++i) {
    const double size = std::abs(static_cast<double>(values[i]));
    const double term = std::isinf(p) ? size
        : p == 2.0                    ? size * size
                                      : std::pow(size, p);
    part = combined(part, term, p);
  }
  return part;
}

double add_parts(const std::vector<double>& parts, double p) {
  double total = 0.0;
  for (const double part : parts) {
    total = combined(total, part, p);
  }
  return total;
}

}  // namespace

PendingGradients::PendingGradients(
    std::shared_ptr<TableStore> store,
    at::Tensor virtual_variable)
    : store_(std::move(store)),
      virtual_variable_(std::move(virtual_variable)),
      accumulators_(store_->state().tables.size()) {}

std::shared_ptr<PendingGradients::Claim> PendingGradients::claim() {
  TESSERA_CHECK(
      !is_claimed(),
      "[Combined] the layer belongs to another Combined already. Keep one Combined per layer, for all losses.");
  auto claim = std::make_shared<Claim>();
  claim_ = claim;
  return claim;
}

// Optimizer::zero_grad() is not virtual, so this object is not notified.
// zero_grad(false) through a reference to the base class keeps the gradient, and so is
// not noticed.
//
// A pass of another thread may set the gradient meanwhile. That pass adds its gradients to
// this object afterwards, so they are not discarded.
void PendingGradients::discard_if_zeroed() {
  if (!virtual_variable_.grad().defined()) {
    discard();
  }
}

void PendingGradients::add(const std::vector<LookupGradients>& lookups) {
  TESSERA_CHECK(
      !is_stepping_,
      "[TPUEmbedding] expected no backward() within the step() of a Combined, but a callable or a custom rule has called it there. Call it before or after step().");
  std::string non_finite;
  accumulators_ = store_->accumulate(accumulators_, lookups, non_finite);
  if (non_finite_.empty()) {
    non_finite_ = std::move(non_finite);
  }
}

int64_t PendingGradients::passes() const {
  int64_t passes = 0;
  for (const GradientAccumulator& accumulator : accumulators_) {
    passes = std::max(passes, accumulator.passes());
  }
  return passes;
}

double PendingGradients::norm(double p) const {
  // Parts have fixed lengths and are added in order, so the result does not depend on
  // the number of threads.
  constexpr int64_t kPart = 16384;
  std::vector<std::pair<const float*, int64_t>> parts;
  int64_t bytes = 0;
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    if (store_->state().tables[i].rows.is_copy) {
      continue;
    }
    const GradientAccumulator& accumulator = accumulators_[i];
    const auto count = static_cast<int64_t>(accumulator.sums().size());
    bytes += count * static_cast<int64_t>(sizeof(float));
    for (int64_t begin = 0; begin < count; begin += kPart) {
      parts.emplace_back(
          accumulator.sums().data() + begin, std::min(kPart, count - begin));
    }
  }
  std::vector<double> sums(parts.size());
  run_tasks(std::ssize(parts), bytes, [&](int64_t i) {
    sums[i] = part_of_norm(parts[i].first, parts[i].second, p);
  });
  const double total = add_parts(
      store_->gather(add_parts(sums, p), std::bit_cast<uint64_t>(p)), p);
  return std::isinf(p) ? total : std::pow(total, 1.0 / p);
}

void PendingGradients::scale(double factor) {
  for (GradientAccumulator& accumulator : accumulators_) {
    accumulator.scale(static_cast<float>(factor));
  }
}

void PendingGradients::discard() {
  update_ = {};
  non_finite_.clear();
  for (GradientAccumulator& accumulator : accumulators_) {
    accumulator.clear();
  }
}

// All ranks raise an error if one of them has gradients that are not finite.
void PendingGradients::check_finite() const {
  if (!refuses_non_finite(store_->state())) {
    return;
  }
  const std::vector<double> flags =
      store_->gather(non_finite_.empty() ? 0.0 : 1.0, /*options=*/1);
  TESSERA_CHECK_VALUE(non_finite_.empty(), "{}", non_finite_);
  const auto rank = std::ranges::find(flags, 1.0);
  TESSERA_CHECK_VALUE(
      rank == flags.end(),
      "[TPUEmbedding] the gradients of rows must be finite, but some of rank {} are not. No table was changed. Read the error of that rank.",
      rank - flags.begin());
}

void PendingGradients::prepare(double factor) {
  const ProfileScope scope("tessera::update");
  check_finite();
  is_stepping_ = true;
  const auto reset_stepping =
      c10::make_scope_exit([&] { is_stepping_ = false; });
  update_ = store_->plan_accumulated_update(accumulators_, factor);
}

void PendingGradients::apply() {
  const ProfileScope scope("tessera::update");
  if (passes() > 0) {
    store_->apply_update(std::move(update_));
  }
  discard();
}

}  // namespace tessera
