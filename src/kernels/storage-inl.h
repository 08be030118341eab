// SPDX-License-Identifier: Apache-2.0
// Loads and stores of each Storage. There is no include guard, because this file is
// included once per instruction set, inside the target namespace of the kernels.

// The distance of a row's first number from its beginning is kHeader elements.
struct Float32Row {
  using Element = float;
  static constexpr int64_t kHeader = 0;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) {
    return hn::LoadU(d, from);
  }
};

// Takes fewer instructions than hn::IsFinite().
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Mask<D> IsFinite(D d, V value) {
  return hn::Eq(hn::Sub(value, value), hn::Zero(d));
}

// A number in (0, 1) for 16 random bits in each lane.
template <class D, class R>
HWY_INLINE hn::Vec<D> UniformOf(D d, R random) {
  const hn::Rebind<int32_t, D> di32;
  return hn::MulAdd(
      hn::ConvertTo(d, hn::BitCast(di32, random)),
      hn::Set(d, 0x1p-16F),
      hn::Set(d, 0x1p-17F));
}

// bfloat16: the upper half of a float32.
struct BFloat16Row {
  using Element = uint16_t;
  static constexpr int64_t kHeader = 0;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, from));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  }

  template <class D>
  static HWY_INLINE void StoreNearest(D d, hn::Vec<D> value, Element* to) {
    const hn::Rebind<uint32_t, D> d32;
    const auto bits = hn::BitCast(d32, value);
    const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    Store(d, value, hn::Add(hn::Set(d32, 0x7FFF), is_odd), to);
  }

  // `random` has 16 uniform random bits in each lane.
  template <class D, class R>
  static HWY_INLINE void StoreAtRandom(
      D d,
      hn::Vec<D> value,
      R random,
      Element* to) {
    Store(d, value, random, to);
  }

 private:
  // Adds `to_add` to the lower half, so that a carry rounds the upper half up.
  template <class D, class R>
  static HWY_INLINE void Store(D d, hn::Vec<D> value, R to_add, Element* to) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    const hn::Rebind<int32_t, D> di32;
    const auto bits = hn::BitCast(d32, value);
    auto rounded = hn::Add(bits, to_add);
    const auto is_finite = IsFinite(d, value);
    if (HWY_UNLIKELY(!hn::AllTrue(d, is_finite))) {
      // A NaN must stay a NaN, even if its payload is only in the lower half.
      const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
      rounded = hn::IfThenElse(
          hn::RebindMask(d32, is_finite),
          rounded,
          hn::Or(bits, hn::IfThenElseZero(is_nan, hn::Set(d32, 0x00400000))));
    }
    hn::StoreU(
        hn::DemoteTo(d16, hn::BitCast(di32, hn::ShiftRight<16>(rounded))),
        d16,
        to);
  }
};

// IEEE half precision: 10 bits of mantissa, and multiples of 2^-24 below 2^-14. Only
// loads on targets with instructions for the conversion use these instructions. All other
// conversions use integer operations, because Highway's conversions do not support
// infinity on older targets.
struct Float16Row {
  using Element = uint16_t;
  static constexpr int64_t kHeader = 0;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) {
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)  // has instructions
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(
        d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#else
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    const hn::Rebind<int32_t, D> di32;
    const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, from));
    const auto magnitude = hn::And(bits, hn::Set(d32, 0x7FFF));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(d32, 112U << 23));
    const auto infinite = hn::Or(shifted, hn::Set(d32, 0x7F800000));
    const auto subnormal = hn::BitCast(
        d32,
        hn::Mul(
            hn::ConvertTo(d, hn::BitCast(di32, magnitude)),
            hn::Set(d, 0x1p-24F)));
    auto result = hn::IfThenElse(
        hn::Lt(magnitude, hn::Set(d32, 0x0400)), subnormal, normal);
    result = hn::IfThenElse(
        hn::Gt(magnitude, hn::Set(d32, 0x7BFF)), infinite, result);
    return hn::BitCast(d, hn::Or(result, sign));
#endif
  }

  template <class D>
  static HWY_INLINE void StoreNearest(D d, hn::Vec<D> value, Element* to) {
    const hn::Rebind<uint32_t, D> d32;
    const auto magnitude = hn::Abs(value);
    const auto bits = hn::BitCast(d32, magnitude);
    const auto is_odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(d32, 1));
    const auto subnormal = [&]() HWY_ATTR {
      return hn::Round(UnitsOf(d, magnitude));
    };
    Store(d, value, hn::Add(hn::Set(d32, 0x0FFF), is_odd), subnormal, to);
  }

  // `random` has 16 uniform random bits in each lane.
  template <class D, class R>
  static HWY_INLINE void StoreAtRandom(
      D d,
      hn::Vec<D> value,
      R random,
      Element* to) {
    const auto subnormal = [&]() HWY_ATTR {
      const auto units = UnitsOf(d, hn::Abs(value));
      const auto below = hn::Floor(units);
      // The difference is exact, so whole numbers are not rounded up.
      const auto is_up = hn::Lt(UniformOf(d, random), hn::Sub(units, below));
      return hn::Add(below, hn::IfThenElseZero(is_up, hn::Set(d, 1.0F)));
    };
    Store(d, value, hn::ShiftRight<3>(random), subnormal, to);
  }

 private:
  // Returns `magnitude` in units of the smallest float16 above 0, 2^-24.
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V UnitsOf(D d, V magnitude) {
    return hn::Mul(magnitude, hn::Set(d, 0x1p24F));
  }

  // For a normal number, adds `to_add` to the 13 bits that are cut off, so that a carry
  // rounds up. A smaller number becomes subnormal(), which is in units. A branch skips
  // what only small, infinite and NaN numbers need, because they are rare.
  template <class D, class R, class Subnormal>
  static HWY_INLINE void Store(
      D d,
      hn::Vec<D> value,
      R to_add,
      const Subnormal& subnormal,
      Element* to) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    const hn::Rebind<int32_t, D> di32;
    const auto magnitude = hn::Abs(value);
    const auto bits = hn::BitCast(d32, magnitude);
    const auto sign =
        hn::ShiftRight<16>(hn::Xor(hn::BitCast(d32, value), bits));
    // 112 is the difference of the exponents' biases.
    auto result = hn::Min(
        hn::Sub(
            hn::ShiftRight<13>(hn::Add(bits, to_add)),
            hn::Set(d32, 112U << 10)),
        hn::Set(d32, 0x7C00));
    const auto is_small = hn::Lt(magnitude, hn::Set(d, 0x1p-14F));
    const auto is_finite = IsFinite(d, value);
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::AndNot(is_small, is_finite)))) {
      result = hn::IfThenElse(
          hn::RebindMask(d32, is_small),
          hn::BitCast(d32, hn::ConvertTo(di32, subnormal())),
          result);
      const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
      const auto infinite = hn::Or(
          hn::Set(d32, 0x7C00),
          hn::IfThenElseZero(is_nan, hn::Set(d32, 0x0200)));
      result = hn::IfThenElse(hn::RebindMask(d32, is_finite), result, infinite);
    }
    hn::StoreU(
        hn::DemoteTo(d16, hn::BitCast(di32, hn::Or(result, sign))), d16, to);
  }
};

// Codes of 8 bits, with a scale before the first of them.
struct Int8Row {
  using Element = int8_t;
  static constexpr int64_t kHeader = kInt8HeaderBytes;

  // The codes, without the scale.
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) {
    const hn::Rebind<int8_t, D> d8;
    const hn::Rebind<int32_t, D> d32;
    return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, from)));
  }

  static HWY_INLINE float ScaleOf(const Element* first) {
    uint16_t upper;
    std::memcpy(&upper, first - kHeader, sizeof(upper));
    const uint32_t bits = uint32_t{upper} << 16;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return scale;
  }

  // `scale` is a bfloat16.
  static HWY_INLINE void SetScale(Element* first, float scale) {
    uint32_t bits;
    std::memcpy(&bits, &scale, sizeof(bits));
    const auto upper = static_cast<uint16_t>(bits >> 16);
    std::memcpy(first - kHeader, &upper, sizeof(upper));
  }
};

// Whether the numbers of a row are what Load() gives times ScaleOf().
template <class Row>
inline constexpr bool kHasScale = Row::kHeader > 0;
