// SPDX-License-Identifier: Apache-2.0
// Random bits of a row's columns. There is no include guard, because this file is
// included once per instruction set, inside the target namespace of the kernels.

// The finalizer of MurmurHash3.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V MixBits(D d, V x) {
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, 0x85EBCA6BU));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(d, 0xC2B2AE35U));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// key.low + column * 0x9E3779B9 for the columns of one vector.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V FirstBits(D d, RowKey key, int64_t column) {
  constexpr uint32_t kStep = 0x9E3779B9U;
  return hn::Add(
      hn::Mul(hn::Iota(d, 0), hn::Set(d, kStep)),  // a constant
      hn::Set(d, key.low + static_cast<uint32_t>(column) * kStep));
}

// Uniform random bits as a function of (key, column). It uses both halves of the key,
// because among ten million rows, thousands have an equal half.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RandomBits(D d, RowKey key, int64_t column) {
  const V x = FirstBits(d, key, column);
  return MixBits(d, hn::Xor(MixBits(d, x), hn::Set(d, key.high)));
}

// Like RandomBits(), but mixed once, with one half of the key in the middle. It is good
// enough for rounding, where each update has another key.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RoundingBits(D d, RowKey key, int64_t i) {
  V x = FirstBits(d, key, i);
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, 0x85EBCA6BU));
  x = hn::Xor(x, hn::Set(d, key.high));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(d, 0xC2B2AE35U));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// 16 uniform random bits in each lane, as a function of (key, column). Columns 2 i and
// 2 i + 1 get the lower and the upper half of RoundingBits() of i, because mixing costs
// more than the rounding that uses the bits. With several lanes, `column` must be even.
// A bfloat16 step on AVX2 took 1.4 to 4.4 times as long as a float32 step. It takes 0.7 to
// 1.4 times as long since it uses these halves, a branch for infinities, and no copies of
// rows.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RandomHalves(D d, RowKey key, int64_t column) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    const V both = RoundingBits(d, key, column / 2);
    return column % 2 == 0 ? hn::And(both, hn::Set(d, 0xFFFF))
                           : hn::ShiftRight<16>(both);
  } else {
    const hn::Half<D> d_half;
    const hn::Repartition<uint16_t, hn::Half<D>> d16;
    return hn::PromoteTo(
        d, hn::BitCast(d16, RoundingBits(d_half, key, column / 2)));
  }
}

template <class V>
struct TwoVectors {
  V first;
  V second;
};

// RandomHalves() of two vectors of columns, for the price of one.
template <class D, class V = hn::Vec<D>>
HWY_INLINE TwoVectors<V> RandomHalvesOfTwo(D d, RowKey key, int64_t column) {
#if HWY_TARGET == HWY_SCALAR  // has no halves of vectors
  return {RandomHalves(d, key, column), RandomHalves(d, key, column + 1)};
#else
  const hn::Repartition<uint16_t, D> d16;
  const hn::Half<decltype(d16)> d16_half;
  const auto halves = hn::BitCast(d16, RoundingBits(d, key, column / 2));
  return {
      hn::PromoteTo(d, hn::LowerHalf(d16_half, halves)),
      hn::PromoteTo(d, hn::UpperHalf(d16_half, halves))};
#endif
}
