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

// c0 + c1 x + c2 x^2 + ...
template <class D, class V = hn::Vec<D>, size_t kCount>
HWY_INLINE V Polynomial(D d, V x, const float (&coefficients)[kCount]) {
  V sum = hn::Set(d, coefficients[kCount - 1]);
  for (size_t i = kCount - 1; i > 0; --i) {
    sum = hn::MulAdd(sum, x, hn::Set(d, coefficients[i - 1]));
  }
  return sum;
}

// The quantile function of the standard normal distribution at 1/2 + q, for the tails.
// Source of the polynomial: Giles, "Approximating the erfinv function", GPU Computing
// Gems 2 (2010).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TailQuantile(D d, V q, V variance) {
  constexpr float kCoefficients[] = {
      2.83297682F,
      1.00167406F,
      0.00943887047F,
      -0.0076224613F,
      0.00573950773F,
      -0.00367342844F,
      0.00134934322F,
      0.000100950558F,
      -0.000200214257F};
  const V w = hn::Neg(hn::Log(d, hn::Mul(hn::Set(d, 4.0F), variance)));
  const V s = hn::Sub(hn::Sqrt(w), hn::Set(d, 3.0F));
  const V p = Polynomial(d, s, kCoefficients);
  return hn::Mul(hn::Mul(p, q), hn::Set(d, 2.82842712F));
}

// The quantile function of the standard normal distribution at 1/2 + q. It has 6 correct
// digits.
//
// In the middle, z / q is a rational function of the variance (1/2 - q) (1/2 + q), whose
// coefficients were fitted to z for probabilities from 0.001 to 0.999. No term is
// negative, so nothing cancels, unlike in Acklam's formula. A branch skips the tails,
// because they are rare. With Giles's polynomials alone, it took twice as long.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalQuantile(D d, V q) {
  constexpr float kNumerator[] = {
      7.74337457F,
      25920.4175F,
      12102429.5F,
      1.19395129e+09F,
      2.67533492e+10F,
      1.17879307e+11F,
      5.00682097e+10F};
  constexpr float kDenominator[] = {
      1.0F,
      4057.74682F,
      2251185.53F,
      271114929.0F,
      7.92248202e+09F,
      5.26781748e+10F,
      5.5177738e+10F};
  const V half = hn::Set(d, 0.5F);
  const V variance = hn::Mul(hn::Sub(half, q), hn::Add(half, q));
  const V ratio = hn::Div(
      Polynomial(d, variance, kNumerator),
      Polynomial(d, variance, kDenominator));
  const V z = hn::Mul(q, ratio);
  const auto is_tail = hn::Lt(variance, hn::Set(d, 0.001F));
  if (HWY_LIKELY(hn::AllFalse(d, is_tail))) {
    return z;
  }
  return hn::IfThenElse(is_tail, TailQuantile(d, q, variance), z);
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
