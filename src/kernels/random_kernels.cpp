// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/random_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "src/kernels/kernels.h"
#include "src/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "src/kernels/columns-inl.h"
#include "src/kernels/random_bits-inl.h"

// Uniform in (-1/2, 1/2), symmetric: odd multiples of 2^-25.
template <class D, class U>
HWY_INLINE hn::Vec<D> Centered(D d, U bits) {
  const hn::Rebind<int32_t, D> di32;
  const auto steps = hn::ConvertTo(
      d,
      hn::Sub(
          hn::BitCast(di32, hn::ShiftRight<8>(bits)), hn::Set(di32, 1 << 23)));
  return hn::Mul(hn::Add(steps, hn::Set(d, 0.5F)), hn::Set(d, 0x1p-24F));
}

// Inverse of the standard normal's distribution function at 1/2 + q, to 7
// digits: algorithm AS 241 (PPND7), Wichura 1988.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalQuantile(D d, V q) {
  const V r = hn::NegMulAdd(q, q, hn::Set(d, 0.180625F));
  V above = hn::Set(d, 59.109374720F);
  above = hn::MulAdd(above, r, hn::Set(d, 159.29113202F));
  above = hn::MulAdd(above, r, hn::Set(d, 50.434271938F));
  above = hn::MulAdd(above, r, hn::Set(d, 3.3871327179F));
  V below = hn::Set(d, 67.187563600F);
  below = hn::MulAdd(below, r, hn::Set(d, 78.757757664F));
  below = hn::MulAdd(below, r, hn::Set(d, 17.895169469F));
  below = hn::MulAdd(below, r, hn::Set(d, 1.0F));
  const V center = hn::Div(hn::Mul(q, above), below);

  const V size = hn::Abs(q);
  const auto is_tail = hn::Gt(size, hn::Set(d, 0.425F));
  if (hn::AllFalse(d, is_tail)) {
    return center;
  }
  const V tail = hn::Sub(hn::Set(d, 0.5F), size);
  const V t = hn::Sub(hn::Sqrt(hn::Neg(hn::Log(d, tail))), hn::Set(d, 1.6F));
  above = hn::Set(d, 0.17023821103F);
  above = hn::MulAdd(above, t, hn::Set(d, 1.3067284816F));
  above = hn::MulAdd(above, t, hn::Set(d, 2.7568153900F));
  above = hn::MulAdd(above, t, hn::Set(d, 1.4234372777F));
  below = hn::Set(d, 0.12021132975F);
  below = hn::MulAdd(below, t, hn::Set(d, 0.73700164250F));
  below = hn::MulAdd(below, t, hn::Set(d, 1.0F));
  return hn::IfThenElse(
      is_tail, hn::CopySign(hn::Div(above, below), q), center);
}

struct FillUniform {
  const RandomArgs& args;

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> q) const {
    // Neither product overflows, whatever the range.
    const auto half = hn::Set(d, 0.5F);
    const auto value = hn::MulAdd(
        hn::Set(d, args.uniform_low),
        hn::Sub(half, q),
        hn::Mul(hn::Set(d, args.uniform_last), hn::Add(half, q)));
    return hn::Min(
        hn::Set(d, args.uniform_last),
        hn::Max(hn::Set(d, args.uniform_low), value));
  }
};

struct FillNormal {
  const RandomArgs& args;

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> q) const {
    // Truncation keeps the middle of the distribution.
    const auto z = NormalQuantile(d, hn::Mul(q, hn::Set(d, args.mass)));
    const auto limit = hn::Set(d, args.limit);
    const auto kept = hn::Min(limit, hn::Max(hn::Neg(limit), z));
    return hn::MulAdd(hn::Set(d, args.stddev), kept, hn::Set(d, args.mean));
  }
};

template <class Transform>
struct FillColumns {
  const Transform& transform;
  RowKey key;
  float* row;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    const auto q = Centered(d, RandomBits(d32, key, column));
    hn::StoreU(transform(d, q), d, row + column);
  }
};

template <class Transform>
HWY_INLINE void Fill(const RandomArgs& args, const Transform& transform) {
  for (int64_t row = args.begin_row; row < args.end_row; ++row) {
    const RowKey key = key_of_row(args.key, args.first_row + row);
    ForColumns(
        args.dim,
        FillColumns<Transform>{transform, key, args.out + row * args.dim});
  }
}

void FillRandom(const RandomArgs& args) {
  if (args.is_uniform) {
    Fill(args, FillUniform{args});
  } else {
    Fill(args, FillNormal{args});
  }
}

void AddRandomKernels(KernelTable& table) {
  table.fill_random = FillRandom;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(AddRandomKernels);

void add_random_kernels(KernelTable& table) {
  HWY_DYNAMIC_DISPATCH(AddRandomKernels)(table);
}

}  // namespace tessera::kernels
#endif
