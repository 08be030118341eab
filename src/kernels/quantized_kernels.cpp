// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/quantized_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "src/kernels/kernels.h"
#include "src/kernels/prefetch.h"
#include "src/kernels/targets.h"

#include <algorithm>
#include <cmath>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "src/kernels/prefetch-inl.h"

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

template <int kBits, Places kPlaces>
struct QuantizedBags {
  static constexpr int kCodeBits = kBits;

  const CombineQuantizedArgs& args;
  int64_t row_bytes;
  // How many positions ahead of its use a row is prefetched.
  int64_t prefetch_distance;
  // The same for the second-level cache.
  int64_t far_prefetch_distance;

  const char* RowOf(int64_t position) const {
    if constexpr (kPlaces == Places::kPointers) {
      return static_cast<const char*>(args.rows[position]);
    } else {
      return static_cast<const char*>(args.table) +
          static_cast<int64_t>(args.ids[position]) * row_bytes;
    }
  }

  // Inlined, because GCC removes calls that only prefetch.
  template <CacheLevel kLevel>
  HWY_INLINE void Prefetch(int64_t position) const {
    if (position < args.nnz) {
      PrefetchUnaligned<kLevel>(RowOf(position), row_bytes);
    }
  }
};

// Sums columns [column, column + kVectors * lanes) of one bag in registers, and stores
// those below `dim`.
template <int kVectors, class Bags, class D>
HWY_INLINE void SumQuantized(
    D d,
    const Bags& bags,
    int64_t begin,
    int64_t end,
    int64_t column,
    float scale,
    float* HWY_RESTRICT out) {
  using V = hn::Vec<D>;
  const CombineQuantizedArgs& args = bags.args;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sums[kVectors];
#pragma GCC unroll 8
  for (V& sum : sums) {
    sum = hn::Zero(d);
  }
  float offsets = 0.0F;
  for (int64_t i = begin; i < end; ++i) {
    if (column == 0) {
      bags.template Prefetch<CacheLevel::kSecond>(
          i + bags.far_prefetch_distance);
      bags.template Prefetch<CacheLevel::kFirst>(i + bags.prefetch_distance);
    }
    const char* bytes = bags.RowOf(i);
    QuantizedRow row;
    std::memcpy(&row, bytes, sizeof(row));
    const auto* codes = reinterpret_cast<const uint8_t*>(bytes) + sizeof(row);
    const float weight = args.weights == nullptr ? 1.0F : args.weights[i];
    const V factor = hn::Set(d, weight * row.scale);
    offsets += weight * row.offset;
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::MulAdd(
          factor,
          LoadCodes<Bags::kCodeBits>(d, codes, column + v * lanes),
          sums[v]);
    }
  }
  const V bag_scale = hn::Set(d, scale);
  const V offset = hn::Set(d, offsets);
#pragma GCC unroll 8
  for (int64_t v = 0; v < kVectors; ++v) {
    const int64_t first = column + v * lanes;
    const V result = hn::Mul(hn::Add(sums[v], offset), bag_scale);
    if (first + lanes <= args.dim) {
      hn::StoreU(result, d, out + first);
    } else if (first < args.dim) {
      HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
      hn::Store(result, d, values);
      for (int64_t i = 0; i < lanes && first + i < args.dim; ++i) {
        out[first + i] = values[i];
      }
    }
  }
}

template <int kBits, Places kPlaces>
void CombineQuantizedRows(const CombineQuantizedArgs& args) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t row_bytes = QuantizedRow::bytes(args.dim, kBits);
  const QuantizedBags<kBits, kPlaces> bags{
      args,
      row_bytes,
      prefetch_distance(row_bytes),
      quantized_prefetch_distance(row_bytes)};
  const int64_t first =
      args.offsets == nullptr ? args.begin_bag : args.offsets[args.begin_bag];
  for (int64_t i = 0; i < bags.far_prefetch_distance; ++i) {
    bags.template Prefetch<CacheLevel::kSecond>(first + i);
  }
  for (int64_t bag = args.begin_bag; bag < args.end_bag; ++bag) {
    const int64_t begin = args.offsets == nullptr ? bag : args.offsets[bag];
    const int64_t end =
        args.offsets == nullptr ? bag + 1 : args.offsets[bag + 1];
    const float scale = args.scales == nullptr ? 1.0F : args.scales[bag];
    float* HWY_RESTRICT out = args.out + bag * args.dim;
    for (int64_t column = 0; column < args.dim;) {
      const int64_t left = args.dim - column;
      if (left > 4 * lanes) {
        SumQuantized<8>(d, bags, begin, end, column, scale, out);
        column += 8 * lanes;
      } else if (left > 2 * lanes) {
        SumQuantized<4>(d, bags, begin, end, column, scale, out);
        column += 4 * lanes;
      } else if (left > lanes) {
        SumQuantized<2>(d, bags, begin, end, column, scale, out);
        column += 2 * lanes;
      } else {
        SumQuantized<1>(d, bags, begin, end, column, scale, out);
        column += lanes;
      }
    }
  }
}

template <int kBits>
void CombineQuantizedBits(const CombineQuantizedArgs& args) {
  if (args.rows != nullptr) {
    CombineQuantizedRows<kBits, Places::kPointers>(args);
  } else {
    CombineQuantizedRows<kBits, Places::kTable>(args);
  }
}

void CombineQuantized(const CombineQuantizedArgs& args) {
  if (args.bits == 8) {
    CombineQuantizedBits<8>(args);
  } else {
    CombineQuantizedBits<4>(args);
  }
}

void AddQuantizedKernels(KernelTable& table) {
  table.combine_quantized = CombineQuantized;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

bool quantize_row(const float* values, int64_t dim, int bits, void* row) {
  float lowest = values[0];
  float highest = values[0];
  bool is_finite = true;
  for (int64_t i = 0; i < dim; ++i) {
    lowest = std::min(lowest, values[i]);
    highest = std::max(highest, values[i]);
    is_finite = is_finite && std::isfinite(values[i]);
  }
  const auto largest_code = static_cast<float>((1 << bits) - 1);
  const float range = highest - lowest;
  if (!is_finite || !std::isfinite(range)) {
    return false;
  }
  const QuantizedRow parts{.scale = range / largest_code, .offset = lowest};
  std::memset(row, 0, static_cast<size_t>(QuantizedRow::bytes(dim, bits)));
  std::memcpy(row, &parts, sizeof(parts));
  auto* codes = static_cast<uint8_t*>(row) + sizeof(parts);
  // In doubles, because the reciprocal of a tiny range is infinite in float32.
  const double codes_per_unit = range > 0.0F
      ? static_cast<double>(largest_code) / static_cast<double>(range)
      : 0.0;
  for (int64_t i = 0; i < dim; ++i) {
    const double code = std::nearbyint(
        (static_cast<double>(values[i]) - static_cast<double>(lowest)) *
        codes_per_unit);
    const auto small =
        static_cast<uint8_t>(std::min(code, static_cast<double>(largest_code)));
    if (bits == 8) {
      codes[i] = small;
    } else {
      codes[i / 2] |= static_cast<uint8_t>(i % 2 == 0 ? small : small << 4);
    }
  }
  return true;
}

}  // namespace tessera::kernels
#endif
