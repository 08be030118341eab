// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/update_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include <math.h>

#include <type_traits>

#include "src/kernels/kernels.h"
#include "src/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "src/kernels/row_rules-inl.h"

constexpr int64_t kPrefetchAhead = 6;
constexpr int64_t kFloatsPerLine = 16;

// Calls f(tag, column) for a row's full vectors, then for single columns: a
// masked load may read past the end of the table.
template <class F>
HWY_INLINE void ForColumns(int64_t dim, const F& f) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t column = 0;
  for (; column + lanes <= dim; column += lanes) {
    f(d, column);
  }
  for (; column < dim; ++column) {
    f(one, column);
  }
}

// A NaN compares false and so stays visible; what Min and Max make of one
// differs between targets.
struct Clamp {
  const float* from;
  float* to;
  float low;
  float high;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const auto lowest = hn::Set(d, low);
    const auto highest = hn::Set(d, high);
    auto value = hn::LoadU(d, from + column);
    value = hn::IfThenElse(hn::Lt(value, lowest), lowest, value);
    value = hn::IfThenElse(hn::Gt(value, highest), highest, value);
    hn::StoreU(value, d, to + column);
  }
};

struct Decay {
  float* weights;
  float decay;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const auto weight = hn::LoadU(d, weights + column);
    hn::StoreU(
        hn::NegMulAdd(hn::Set(d, decay), weight, weight), d, weights + column);
  }
};

// sum += gain * gradient; the first term starts the sum.
struct AddGradient {
  const GradientSource& source;
  float* sum;
  bool is_first;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const auto gain = hn::Set(d, source.gain);
    const auto term = hn::LoadU(d, source.gradient + column);
    const auto so_far = is_first ? hn::Zero(d) : hn::LoadU(d, sum + column);
    hn::StoreU(hn::MulAdd(gain, term, so_far), d, sum + column);
  }
};

template <class Row>
struct Step {
  const UpdateArgs& args;
  const typename Row::Rule& rule;
  typename Row::Local local;
  int64_t offset;
  const float* HWY_RESTRICT gradient;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    float* slots[kMaxSlots] = {};
    for (size_t i = 0; i < Row::kSlots; ++i) {
      if (args.slots[i] != nullptr) {
        slots[i] = args.slots[i] + offset + column;
      }
    }
    float* weight = args.parameters + offset + column;
    hn::StoreU(
        Row::Step(
            d,
            rule,
            local,
            hn::LoadU(d, weight),
            hn::LoadU(d, gradient + column),
            slots),
        d,
        weight);
  }
};

template <class Row, bool kStages>
HWY_INLINE void StepRow(
    const UpdateArgs& args,
    const typename Row::Rule& rule,
    uint32_t row,
    const float* gradient) {
  const int64_t offset = static_cast<int64_t>(row) * args.dim;
  const RowStages& stages = args.stages;
  float* weights = args.parameters + offset;
  if constexpr (kStages) {
    if (stages.clip_gradient) {
      ForColumns(
          args.dim,
          Clamp{
              gradient,
              args.gradient,
              stages.clip_gradient_min,
              stages.clip_gradient_max});
      gradient = args.gradient;
    }
    if (stages.weight_decay != 0.0F) {
      ForColumns(args.dim, Decay{weights, stages.weight_decay});
    }
  }
  const auto local = Row::Begin(args, rule, row, gradient);
  ForColumns(
      args.dim,
      Step<Row>{args, rule, local, offset, GradientOf<Row>(args, gradient)});
  if constexpr (kStages) {
    if (stages.clip_weight) {
      ForColumns(
          args.dim,
          Clamp{
              weights,
              weights,
              stages.clip_weight_min,
              stages.clip_weight_max});
    }
  }
}

template <class Row>
HWY_INLINE void PrefetchContribution(const UpdateArgs& args, int64_t index) {
  if (index >= args.count) {
    return;
  }
  const Contribution& next = args.contributions[index];
  const int64_t offset = static_cast<int64_t>(next.row) * args.dim;
  const float* gradient = args.sources[next.source].gradient;
  if constexpr (kHasOneSlotPerRow<Row>) {
    hwy::Prefetch(args.slots[0] + next.row);
  }
  for (int64_t column = 0; column < args.dim; column += kFloatsPerLine) {
    hwy::Prefetch(args.parameters + offset + column);
    if constexpr (!kHasOneSlotPerRow<Row>) {
      for (size_t i = 0; i < Row::kSlots; ++i) {
        if (args.slots[i] != nullptr) {
          hwy::Prefetch(args.slots[i] + offset + column);
        }
      }
    }
    hwy::Prefetch(gradient + column);
  }
}

template <class Row, bool kStages>
HWY_INLINE void SweepRows(
    const UpdateArgs& args,
    const typename Row::Rule& rule,
    uint32_t begin,
    uint32_t end) {
  for (uint32_t row = begin; row < end; ++row) {
    StepRow<Row, kStages>(args, rule, row, args.zeros);
  }
}

template <class Row, bool kStages>
void UpdateRows(const UpdateArgs& args, const typename Row::Rule& rule) {
  uint32_t next_row = args.first_row;
  int64_t i = 0;
  while (i < args.count) {
    const uint32_t row = args.contributions[i].row;
    if (args.sweep) {
      SweepRows<Row, kStages>(args, rule, next_row, row);
      next_row = row + 1;
    }
    PrefetchContribution<Row>(args, i + kPrefetchAhead);
    const GradientSource& source = args.sources[args.contributions[i].source];
    ++i;
    const bool alone =
        !args.accumulate || i == args.count || args.contributions[i].row != row;
    if (alone && source.gain == 1.0F) {
      StepRow<Row, kStages>(args, rule, row, source.gradient);
      continue;
    }
    ForColumns(args.dim, AddGradient{source, args.gradient, true});
    for (; !alone && i < args.count && args.contributions[i].row == row; ++i) {
      PrefetchContribution<Row>(args, i + kPrefetchAhead);
      const GradientSource& more = args.sources[args.contributions[i].source];
      ForColumns(args.dim, AddGradient{more, args.gradient, false});
    }
    StepRow<Row, kStages>(args, rule, row, args.gradient);
  }
  if (args.sweep) {
    SweepRows<Row, kStages>(args, rule, next_row, args.end_row);
  }
}

template <class Row>
void Update(const UpdateArgs& args, const void* rule) {
  const auto& typed = *static_cast<const typename Row::Rule*>(rule);
  if (args.stages.any()) {
    UpdateRows<Row, true>(args, typed);
  } else {
    UpdateRows<Row, false>(args, typed);
  }
}

void SumRows(const SumArgs& args) {
  uint32_t* row = args.rows;
  float* sum = args.sums;
  for (int64_t i = 0; i < args.count; ++i) {
    const Contribution& contribution = args.contributions[i];
    const bool is_first =
        i == 0 || args.contributions[i - 1].row != contribution.row;
    if (is_first && i > 0) {
      ++row;
      sum += args.dim;
    }
    *row = contribution.row;
    ForColumns(
        args.dim,
        AddGradient{args.sources[contribution.source], sum, is_first});
  }
}

template <class... Rows>
void FillUpdates(KernelTable& table) {
  static_assert(
      std::is_same_v<RowRule, std::variant<typename Rows::Rule...>>,
      "list the rows in the order of RowRule");
  table.update_by_rule = {Update<Rows>...};
}

void AddUpdateKernels(KernelTable& table) {
  table.sum_rows = SumRows;
  FillUpdates<
      SgdRow,
      AdagradRow,
      AdagradMomentumRow,
      FtrlRow,
      AdamRow,
      MomentumRow,
      RmspropRow,
      AdadeltaRow,
      ProximalAdagradRow,
      LionRow,
      RowWiseAdagradRow,
      LambRow>(table);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(AddUpdateKernels);

void add_update_kernels(KernelTable& table) {
  HWY_DYNAMIC_DISPATCH(AddUpdateKernels)(table);
}

}  // namespace tessera::kernels
#endif
