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

// Uniform random bits as a function of (key, column). It uses both halves of the key,
// because among ten million rows, thousands have an equal half.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RandomBits(D d, RowKey key, int64_t column) {
  const V columns = hn::Iota(d, static_cast<uint32_t>(column));
  const V x =
      hn::Add(hn::Mul(columns, hn::Set(d, 0x9E3779B9U)), hn::Set(d, key.low));
  return MixBits(d, hn::Xor(MixBits(d, x), hn::Set(d, key.high)));
}
