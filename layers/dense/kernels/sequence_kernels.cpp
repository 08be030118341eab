// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/dense/kernels/sequence_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "layers/dense/kernels/dense_kernels.h"
#include "src/kernels/random_bits.h"

#include <algorithm>
#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "src/kernels/columns-inl.h"
#include "src/kernels/random_bits-inl.h"

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

HWY_INLINE int64_t LengthOfRow(const SoftmaxArgs& args, int64_t row) {
  return std::min(args.columns, args.length + row * args.length_step);
}

// The columns up to the end of the row's last vector. Rows have space for them.
HWY_INLINE int64_t PaddedColumns(int64_t columns) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(FloatTag()));
  return (columns + lanes - 1) / lanes * lanes;
}

HWY_INLINE auto FirstColumns(int64_t column, int64_t length) {
  return hn::FirstN(
      FloatTag(), static_cast<size_t>(std::max<int64_t>(0, length - column)));
}

HWY_INLINE float LargestValue(const float* row, int64_t length) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVector lowest =
      hn::Set(d, -std::numeric_limits<float>::infinity());
  FloatVector largest = lowest;
  int64_t c = 0;
  for (; c + lanes <= length; c += lanes) {
    largest = hn::Max(largest, hn::LoadU(d, row + c));
  }
  if (c < length) {
    largest = hn::Max(
        largest,
        hn::IfThenElse(FirstColumns(c, length), hn::LoadU(d, row + c), lowest));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// Replaces x by exp(scale * x - shift) and returns the sum. The columns from `length` on
// become 0.
HWY_INLINE float Exponentiate(
    float* row,
    int64_t length,
    float scale,
    float shift) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVector factor = hn::Set(d, scale);
  const FloatVector offset = hn::Set(d, shift);
  // Highway's Exp() of NaN is 0, which would hide the NaN.
  const auto exp_at = [&](int64_t c) HWY_ATTR {
    const FloatVector x = hn::MulSub(factor, hn::LoadU(d, row + c), offset);
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
  };
  FloatVector sum = hn::Zero(d);
  int64_t c = 0;
  for (; c + lanes <= length; c += lanes) {
    const FloatVector e = exp_at(c);
    hn::StoreU(e, d, row + c);
    sum = hn::Add(sum, e);
  }
  if (c < length) {
    const FloatVector e =
        hn::IfThenElseZero(FirstColumns(c, length), exp_at(c));
    hn::StoreU(e, d, row + c);
    sum = hn::Add(sum, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void Softmax(const SoftmaxArgs& args) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t padded = PaddedColumns(args.columns);
  for (int64_t r = 0; r < args.rows; ++r) {
    float* row = args.values + r * args.stride;
    const int64_t length = LengthOfRow(args, r);
    const float shift = args.scale * LargestValue(row, length);
    const float sum = Exponentiate(row, length, args.scale, shift);
    const FloatVector share = hn::Set(d, 1.0F / sum);
    int64_t c = 0;
    for (; c < length; c += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, row + c), share), d, row + c);
    }
    for (; c < padded; c += lanes) {
      hn::StoreU(hn::Zero(d), d, row + c);
    }
    if (args.log_sums != nullptr) {
      args.log_sums[r] = shift + std::log(sum);
    }
  }
}

void SoftmaxGradient(const SoftmaxArgs& args) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t padded = PaddedColumns(args.columns);
  const FloatVector scale = hn::Set(d, args.scale);
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* shares = args.values + r * args.stride;
    float* gradients = args.gradients + r * args.stride;
    const int64_t length = LengthOfRow(args, r);
    FloatVector sums = hn::Zero(d);
    int64_t c = 0;
    for (; c + lanes <= length; c += lanes) {
      sums = hn::MulAdd(
          hn::LoadU(d, shares + c), hn::LoadU(d, gradients + c), sums);
    }
    if (c < length) {
      const FloatVector product =
          hn::Mul(hn::LoadU(d, shares + c), hn::LoadU(d, gradients + c));
      sums =
          hn::Add(sums, hn::IfThenElseZero(FirstColumns(c, length), product));
    }
    const FloatVector mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sums)));
    const auto gradient_at = [&](int64_t at) HWY_ATTR {
      return hn::Mul(
          hn::Mul(hn::LoadU(d, shares + at), scale),
          hn::Sub(hn::LoadU(d, gradients + at), mean));
    };
    c = 0;
    for (; c + lanes <= length; c += lanes) {
      hn::StoreU(gradient_at(c), d, gradients + c);
    }
    if (c < length) {
      hn::StoreU(
          hn::IfThenElseZero(FirstColumns(c, length), gradient_at(c)),
          d,
          gradients + c);
      c += lanes;
    }
    for (; c < padded; c += lanes) {
      hn::StoreU(hn::Zero(d), d, gradients + c);
    }
  }
}

struct DropoutColumns {
  DropoutArgs args;  // a copy, because stores could change the original
  RowKey key;
  int64_t begin;  // the index of the row's first element

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const hn::RebindToUnsigned<D> du;
    const auto bits = RoundingBits(du, key, column);
    const auto is_dropped = hn::Lt(bits, hn::Set(du, args.threshold));
    const auto x =
        hn::Mul(hn::LoadU(d, args.x + begin + column), hn::Set(d, args.scale));
    auto kept = hn::IfThenZeroElse(hn::RebindMask(d, is_dropped), x);
    if (args.addend != nullptr) {
      kept = hn::Add(kept, hn::LoadU(d, args.addend + begin + column));
    }
    hn::StoreU(kept, d, args.out + begin + column);
  }
};

void Dropout(const DropoutArgs& args) {
  for (int64_t r = args.begin_row; r < args.end_row; ++r) {
    ForColumns(
        args.dim, DropoutColumns{args, key_of_row(args.key, r), r * args.dim});
  }
}

void AddSequenceKernels(DenseKernelTable& table) {
  table.softmax = Softmax;
  table.softmax_gradient = SoftmaxGradient;
  table.dropout = Dropout;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(AddSequenceKernels);

void add_sequence_kernels(DenseKernelTable& table) {
  HWY_DYNAMIC_DISPATCH(AddSequenceKernels)(table);
}

}  // namespace tessera::kernels
#endif
