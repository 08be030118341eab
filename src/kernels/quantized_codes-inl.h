// SPDX-License-Identifier: Apache-2.0
// Reads quantized rows. There is no include guard, because this file is included once per
// instruction set, inside the target namespace of the kernels.

// The codes [column, column + lanes) of a row, as floats.
template <int kBits, class D>
HWY_INLINE hn::Vec<D> LoadCodes(D d, const uint8_t* codes, int64_t column) {
  const hn::Rebind<int32_t, D> d32;
  if constexpr (kBits == 8) {
    const hn::Rebind<uint8_t, D> d8;
    return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + column)));
  } else if constexpr (HWY_TARGET == HWY_SCALAR) {
    const int32_t pair = codes[column / 2];
    return hn::Set(
        d, static_cast<float>(column % 2 == 0 ? pair & 0xF : pair >> 4));
  } else {
    // Each lane gets 32 bits with 8 codes, and shifts its code to the lowest bits.
    constexpr int64_t kCodesPerWord = 8;
    const hn::Rebind<uint32_t, D> du32;
    const auto lane = hn::Iota(du32, 0);
    const auto shift =
        hn::ShiftLeft<2>(hn::And(lane, hn::Set(du32, kCodesPerWord - 1)));
    auto words = hn::Zero(du32);
    if constexpr (hn::MaxLanes(d) > kCodesPerWord) {
      static_assert(hn::MaxLanes(d) <= 2 * kCodesPerWord);
      uint64_t two_words;
      std::memcpy(&two_words, codes + column / 2, sizeof(two_words));
      const hn::Repartition<uint64_t, D> du64;
      words = hn::TableLookupLanes(
          hn::BitCast(du32, hn::Set(du64, two_words)),
          hn::IndicesFromVec(du32, hn::ShiftRight<3>(lane)));
    } else {
      uint32_t word;
      std::memcpy(&word, codes + column / 2, sizeof(word));
      words = hn::Set(du32, word);
    }
    const auto code_bits = hn::And(hn::Shr(words, shift), hn::Set(du32, 0xF));
    return hn::ConvertTo(d, hn::BitCast(d32, code_bits));
  }
}
