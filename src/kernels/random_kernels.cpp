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

// Uniform in (-1/2, 1/2). The values are odd multiples of 2^-25, so they are symmetric.
template <class D, class U>
HWY_INLINE hn::Vec<D> Centered(D d, U bits) {
  const hn::Rebind<int32_t, D> di32;
  const auto steps = hn::ConvertTo(
      d,
      hn::Sub(
          hn::BitCast(di32, hn::ShiftRight<8>(bits)), hn::Set(di32, 1 << 23)));
  return hn::Mul(hn::Add(steps, hn::Set(d, 0.5F)), hn::Set(d, 0x1p-24F));
}

// The quantile function of the standard normal distribution at 1/2 + q, which is
// sqrt(2) erfinv(2 q). It has 6 correct digits. Source of the polynomials: Giles,
// "Approximating the erfinv function", GPU Computing Gems 2 (2010). A branch skips the
// polynomial of the tails, |z| > 2.9, because they are rare.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalQuantile(D d, V q) {
  const V one = hn::Set(d, 1.0F);
  const V x = hn::Add(q, q);
  const V w = hn::Neg(hn::Log(d, hn::Mul(hn::Sub(one, x), hn::Add(one, x))));
  const V t = hn::Sub(w, hn::Set(d, 2.5F));
  V p = hn::Set(d, 2.81022636e-08F);
  p = hn::MulAdd(p, t, hn::Set(d, 3.43273939e-07F));
  p = hn::MulAdd(p, t, hn::Set(d, -3.5233877e-06F));
  p = hn::MulAdd(p, t, hn::Set(d, -4.39150654e-06F));
  p = hn::MulAdd(p, t, hn::Set(d, 0.00021858087F));
  p = hn::MulAdd(p, t, hn::Set(d, -0.00125372503F));
  p = hn::MulAdd(p, t, hn::Set(d, -0.00417768164F));
  p = hn::MulAdd(p, t, hn::Set(d, 0.246640727F));
  p = hn::MulAdd(p, t, hn::Set(d, 1.50140941F));
  const auto is_tail = hn::Ge(w, hn::Set(d, 5.0F));
  if (!hn::AllFalse(d, is_tail)) {
    const V s = hn::Sub(hn::Sqrt(w), hn::Set(d, 3.0F));
    V tail = hn::Set(d, -0.000200214257F);
    tail = hn::MulAdd(tail, s, hn::Set(d, 0.000100950558F));
    tail = hn::MulAdd(tail, s, hn::Set(d, 0.00134934322F));
    tail = hn::MulAdd(tail, s, hn::Set(d, -0.00367342844F));
    tail = hn::MulAdd(tail, s, hn::Set(d, 0.00573950773F));
    tail = hn::MulAdd(tail, s, hn::Set(d, -0.0076224613F));
    tail = hn::MulAdd(tail, s, hn::Set(d, 0.00943887047F));
    tail = hn::MulAdd(tail, s, hn::Set(d, 1.00167406F));
    tail = hn::MulAdd(tail, s, hn::Set(d, 2.83297682F));
    p = hn::IfThenElse(is_tail, tail, p);
  }
  return hn::Mul(hn::Mul(p, x), hn::Set(d, 1.41421356F));
}

struct FillUniform {
  const RandomArgs& args;

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> q) const {
    // With this form, no product overflows for any range.
    const auto half = hn::Set(d, 0.5F);
    const auto value = hn::Add(
        hn::Mul(hn::Set(d, args.uniform_low), hn::Sub(half, q)),
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
    // A truncated distribution is the middle of the whole distribution.
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
    const RowKey key = key_of_row(args.key, args.rows[row]);
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
