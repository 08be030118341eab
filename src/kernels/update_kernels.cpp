// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/update_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "src/kernels/kernels.h"
#include "src/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kPrefetchAhead = 6;
constexpr int64_t kFloatsPerLine = 16;

// A rule: a few columns of one row. `slots` point at these columns; the new
// slots are stored, the new weight is returned.

struct SgdRow {
  using Rule = SgdRule;
  static constexpr size_t kSlots = 0;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V
  Step(D d, const Rule& rule, V weight, V gradient, float* const*) {
    return hn::NegMulAdd(hn::Set(d, rule.learning_rate), gradient, weight);
  }
};

struct AdagradRow {
  using Rule = AdagradRule;
  static constexpr size_t kSlots = 1;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V
  Step(D d, const Rule& rule, V weight, V gradient, float* const* slots) {
    const V accumulator =
        hn::MulAdd(gradient, gradient, hn::LoadU(d, slots[0]));
    hn::StoreU(accumulator, d, slots[0]);
    const V scaled = hn::Mul(hn::Set(d, rule.learning_rate), gradient);
    return hn::Sub(weight, hn::Div(scaled, hn::Sqrt(accumulator)));
  }
};

struct AdamRow {
  using Rule = AdamRule;
  static constexpr size_t kSlots = 2;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V
  Step(D d, const Rule& rule, V weight, V gradient, float* const* slots) {
    const V momentum = hn::MulAdd(
        hn::Set(d, rule.beta_1),
        hn::LoadU(d, slots[0]),
        hn::Mul(hn::Set(d, rule.complement_1), gradient));
    const V velocity = hn::MulAdd(
        hn::Set(d, rule.beta_2),
        hn::LoadU(d, slots[1]),
        hn::Mul(hn::Set(d, rule.complement_2), hn::Mul(gradient, gradient)));
    hn::StoreU(momentum, d, slots[0]);
    hn::StoreU(velocity, d, slots[1]);
    const V denominator = hn::Add(
        hn::Sqrt(hn::Add(velocity, hn::Set(d, rule.epsilon_squared))),
        hn::Set(d, rule.epsilon));
    const V scaled = hn::Mul(hn::Set(d, rule.learning_rate), momentum);
    return hn::Sub(weight, hn::Div(scaled, denominator));
  }
};

// A NaN compares false and so stays visible; what Min and Max make of one
// differs between targets.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Clip(D d, V value, float low, float high) {
  const V lowest = hn::Set(d, low);
  const V highest = hn::Set(d, high);
  value = hn::IfThenElse(hn::Lt(value, lowest), lowest, value);
  return hn::IfThenElse(hn::Gt(value, highest), highest, value);
}

template <class Row, bool kStages, class D>
HWY_INLINE void StepColumns(
    D d,
    const UpdateArgs& args,
    const typename Row::Rule& rule,
    int64_t offset,
    const float* HWY_RESTRICT gradient_columns) {
  using V = hn::Vec<D>;
  V gradient = hn::LoadU(d, gradient_columns);
  V weight = hn::LoadU(d, args.parameters + offset);
  const RowStages& stages = args.stages;
  if constexpr (kStages) {
    if (stages.clip_gradient) {
      gradient =
          Clip(d, gradient, stages.clip_gradient_min, stages.clip_gradient_max);
    }
    weight = hn::NegMulAdd(hn::Set(d, stages.weight_decay), weight, weight);
  }
  float* slots[kMaxSlots] = {};
  for (size_t i = 0; i < Row::kSlots; ++i) {
    slots[i] = args.slots[i] + offset;
  }
  weight = Row::Step(d, rule, weight, gradient, slots);
  if constexpr (kStages) {
    if (stages.clip_weight) {
      weight = Clip(d, weight, stages.clip_weight_min, stages.clip_weight_max);
    }
  }
  hn::StoreU(weight, d, args.parameters + offset);
}

template <class Row, bool kStages>
HWY_INLINE void StepRow(
    const UpdateArgs& args,
    const typename Row::Rule& rule,
    uint32_t row,
    const float* HWY_RESTRICT gradient) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t first = static_cast<int64_t>(row) * args.dim;
  int64_t column = 0;
  for (; column + lanes <= args.dim; column += lanes) {
    StepColumns<Row, kStages>(d, args, rule, first + column, gradient + column);
  }
  for (; column < args.dim; ++column) {
    StepColumns<Row, kStages>(
        one, args, rule, first + column, gradient + column);
  }
}

template <class D>
HWY_INLINE void AddColumns(
    D d,
    const GradientSource& source,
    bool first,
    int64_t column,
    float* HWY_RESTRICT sum) {
  const auto gain = hn::Set(d, source.gain);
  const auto term = hn::LoadU(d, source.gradient + column);
  const auto so_far = first ? hn::Zero(d) : hn::LoadU(d, sum + column);
  hn::StoreU(hn::MulAdd(gain, term, so_far), d, sum + column);
}

// sum = (first ? 0 : sum) + gain * gradient
HWY_INLINE void AddGradient(
    const GradientSource& source,
    bool first,
    int64_t dim,
    float* sum) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t column = 0;
  for (; column + lanes <= dim; column += lanes) {
    AddColumns(d, source, first, column, sum);
  }
  for (; column < dim; ++column) {
    AddColumns(one, source, first, column, sum);
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
  for (int64_t column = 0; column < args.dim; column += kFloatsPerLine) {
    hwy::Prefetch(args.parameters + offset + column);
    for (size_t i = 0; i < Row::kSlots; ++i) {
      hwy::Prefetch(args.slots[i] + offset + column);
    }
    hwy::Prefetch(gradient + column);
  }
}

template <class Row, bool kStages>
void UpdateRows(const UpdateArgs& args, const typename Row::Rule& rule) {
  int64_t i = 0;
  while (i < args.count) {
    const uint32_t row = args.contributions[i].row;
    PrefetchContribution<Row>(args, i + kPrefetchAhead);
    const GradientSource& source = args.sources[args.contributions[i].source];
    ++i;
    const bool alone =
        !args.accumulate || i == args.count || args.contributions[i].row != row;
    if (alone && source.gain == 1.0F) {
      StepRow<Row, kStages>(args, rule, row, source.gradient);
      continue;
    }
    AddGradient(source, true, args.dim, args.gradient);
    for (; !alone && i < args.count && args.contributions[i].row == row; ++i) {
      PrefetchContribution<Row>(args, i + kPrefetchAhead);
      AddGradient(
          args.sources[args.contributions[i].source],
          false,
          args.dim,
          args.gradient);
    }
    StepRow<Row, kStages>(args, rule, row, args.gradient);
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

template <class... Rows>
void FillUpdates(KernelTable& table) {
  static_assert(
      std::is_same_v<RowRule, std::variant<typename Rows::Rule...>>,
      "list the rows in the order of RowRule");
  table.update_by_rule = {Update<Rows>...};
}

void AddUpdateKernels(KernelTable& table) {
  FillUpdates<SgdRow, AdagradRow, AdamRow>(table);
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
