// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/scan_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#include "src/kernels/kernels.h"
#include "src/kernels/targets.h"

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR
void Multiply(const ScanArgs& args) {
  const int64_t stride = ScanArgs::padded(args.dim);
  for (int64_t query = 0; query < args.num_queries; ++query) {
    for (int64_t row = 0; row < args.num_rows; ++row) {
      const auto* numbers = static_cast<const float*>(args.rows[row]);
      const auto* codes =
          static_cast<const uint8_t*>(args.rows[row]) + sizeof(QuantizedRow);
      float sum = 0.0F;
      for (int64_t i = 0; i < args.dim; ++i) {
        const int64_t at = query * stride + i;
        sum += args.integers == nullptr
            ? args.vectors[at] * numbers[i]
            : static_cast<float>(args.integers[at] * codes[i]);
      }
      args.scores[query * ScanArgs::kRows + row] = sum;
    }
  }
}
#else
constexpr int64_t kGroup = 4;  // rows whose sums are added up together

// How rows of floats are read and multiplied.
struct FloatRows {
  using Tag = hn::ScalableTag<float>;
  using SumTag = Tag;
  using V = hn::Vec<Tag>;
  static constexpr int64_t kColumns = 1;  // in 32 bits

  static const float* Vectors(const ScanArgs& args) {
    return args.vectors;
  }
  static HWY_INLINE V Load(const void* row, int64_t column) {
    return hn::LoadU(Tag(), static_cast<const float*>(row) + column);
  }
  static HWY_INLINE V Repeat(const float* number) {
    return hn::Set(Tag(), *number);
  }
  static HWY_INLINE V MulAdd(V a, V b, V sums) {
    return hn::MulAdd(a, b, sums);
  }
};

// How codes are read, and multiplied with integers. The sums are exact.
struct CodeRows {
  using Tag = hn::ScalableTag<int16_t>;
  using SumTag = hn::ScalableTag<int32_t>;
  using V = hn::Vec<Tag>;
  using Sums = hn::Vec<SumTag>;
  static constexpr int64_t kColumns = 2;

  static const int16_t* Vectors(const ScanArgs& args) {
    return args.integers;
  }
  static HWY_INLINE V Load(const void* row, int64_t column) {
    const hn::Rebind<uint8_t, Tag> d8;
    const auto* codes = static_cast<const uint8_t*>(row) + sizeof(QuantizedRow);
    return hn::PromoteTo(Tag(), hn::LoadU(d8, codes + column));
  }
  static HWY_INLINE V Repeat(const int16_t* numbers) {
    int32_t both;
    std::memcpy(&both, numbers, sizeof(both));
    return hn::BitCast(Tag(), hn::Set(SumTag(), both));
  }
  static HWY_INLINE Sums MulAdd(V a, V b, Sums sums) {
    Sums others = hn::Zero(SumTag());
    const Sums first =
        hn::ReorderWidenMulAccumulate(SumTag(), a, b, sums, others);
    return hn::Add(first, others);
  }
};

// Stores sums of floats or integers as floats.
template <class D>
HWY_INLINE void StoreFloats(D /*d*/, hn::Vec<D> sums, float* to) {
  const hn::Rebind<float, D> floats;
  if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
    hn::StoreU(sums, floats, to);
  } else {
    hn::StoreU(hn::ConvertTo(floats, sums), floats, to);
  }
}

// Adds the halves of a vector until four lanes are left.
template <class D>
HWY_INLINE void StoreFolded(D d, hn::Vec<D> sums, float* to) {
  if constexpr (hn::MaxLanes(d) > kGroup) {
    const hn::Half<D> half;
    StoreFolded(
        half,
        hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)),
        to);
  } else {
    StoreFloats(d, sums, to);
  }
}

// to[i] = the sum of the lanes of vectors[i], for kGroup vectors.
template <class D>
HWY_INLINE void StoreSums(D d, const hn::Vec<D>* vectors, float* to) {
  const hn::Repartition<uint64_t, D> pairs;
  const auto add_two = [&](int64_t i) HWY_ATTR {
    return hn::BitCast(
        pairs,
        hn::Add(
            hn::InterleaveLower(d, vectors[i], vectors[i + 1]),
            hn::InterleaveUpper(d, vectors[i], vectors[i + 1])));
  };
  const auto first = add_two(0);
  const auto second = add_two(2);
  StoreFolded(
      d,
      hn::Add(
          hn::BitCast(d, hn::InterleaveLower(pairs, first, second)),
          hn::BitCast(d, hn::InterleaveUpper(pairs, first, second))),
      to);
}

// Multiplies all rows with one query.
template <class Rows>
void MultiplyOne(const ScanArgs& args) {
  const typename Rows::Tag d;
  const typename Rows::SumTag sum_tag;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t row = 0; row < args.num_rows; row += kGroup) {
    const auto zero = hn::Zero(sum_tag);
    hn::Vec<typename Rows::SumTag> sums[kGroup] = {zero, zero, zero, zero};
    for (int64_t column = 0; column < args.dim; column += lanes) {
      const auto numbers = hn::LoadU(d, Rows::Vectors(args) + column);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kGroup; ++i) {
        sums[i] = Rows::MulAdd(
            Rows::Load(args.rows[row + i], column), numbers, sums[i]);
      }
    }
    StoreSums(sum_tag, sums, args.scores + row);
  }
}

// Copies the rows to the scratch memory, so that each vector has 32 bits of several rows:
// a float, or two codes.
template <class Rows>
void Transpose(const ScanArgs& args) {
  const hn::Repartition<float, typename Rows::Tag> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float group[kGroup * hn::MaxLanes(d)];
  for (int64_t row = 0; row < args.num_rows; row += kGroup) {
    float* to = args.scratch + row;
    for (int64_t column = 0; column < args.dim;
         column += lanes * Rows::kColumns) {
      const auto load = [&](int64_t i) HWY_ATTR {
        return hn::BitCast(d, Rows::Load(args.rows[row + i], column));
      };
      hn::StoreInterleaved4(load(0), load(1), load(2), load(3), d, group);
      for (int64_t i = 0; i < lanes; ++i, to += ScanArgs::kRows) {
        std::memcpy(to, group + i * kGroup, kGroup * sizeof(float));
      }
    }
  }
}

// Multiplies the transposed rows with kQueries queries from `query` on.
template <class Rows, int kQueries>
void MultiplyTransposed(const ScanArgs& args, int64_t query) {
  constexpr int kVectors = 4;
  const typename Rows::Tag d;
  const typename Rows::SumTag sum_tag;
  const hn::Repartition<float, typename Rows::Tag> floats;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(sum_tag));
  const int64_t stride = ScanArgs::padded(args.dim);
  const auto* HWY_RESTRICT vectors = Rows::Vectors(args) + query * stride;
  for (int64_t row = 0; row < args.num_rows; row += kVectors * lanes) {
    hn::Vec<typename Rows::SumTag> sums[kQueries][kVectors];
#pragma GCC unroll 4
    for (auto& sum : sums) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kVectors; ++i) {
        sum[i] = hn::Zero(sum_tag);
      }
    }
    const float* HWY_RESTRICT from = args.scratch + row;
    for (int64_t column = 0; column < args.dim; column += Rows::kColumns) {
      hn::Vec<typename Rows::Tag> values[kVectors];
#pragma GCC unroll 4
      for (int64_t i = 0; i < kVectors; ++i) {
        values[i] = hn::BitCast(d, hn::LoadU(floats, from + i * lanes));
      }
      from += ScanArgs::kRows;
#pragma GCC unroll 4
      for (int64_t q = 0; q < kQueries; ++q) {
        const auto number = Rows::Repeat(vectors + q * stride + column);
#pragma GCC unroll 4
        for (int64_t i = 0; i < kVectors; ++i) {
          sums[q][i] = Rows::MulAdd(values[i], number, sums[q][i]);
        }
      }
    }
#pragma GCC unroll 4
    for (int64_t q = 0; q < kQueries; ++q) {
      float* to = args.scores + (query + q) * ScanArgs::kRows + row;
#pragma GCC unroll 4
      for (int64_t i = 0; i < kVectors; ++i) {
        StoreFloats(sum_tag, sums[q][i], to + i * lanes);
      }
    }
  }
}

template <class Rows>
void MultiplyRows(const ScanArgs& args) {
  if (args.num_queries == 1) {
    MultiplyOne<Rows>(args);
    return;
  }
  Transpose<Rows>(args);
  // Queries whose sums are in registers at the same time.
  constexpr int64_t kTile =
      HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 != 0 ? 4 : 2;
  int64_t query = 0;
  for (; query + kTile <= args.num_queries; query += kTile) {
    MultiplyTransposed<Rows, kTile>(args, query);
  }
  for (; query < args.num_queries; ++query) {
    MultiplyTransposed<Rows, 1>(args, query);
  }
}

void Multiply(const ScanArgs& args) {
  if (args.integers != nullptr) {
    MultiplyRows<CodeRows>(args);
  } else {
    MultiplyRows<FloatRows>(args);
  }
}
#endif

// Makes scores of the products with a query, and compares them with the threshold.
void FindHits(const ScanArgs& args, int64_t query) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const ScanQuery& parts = args.queries[query];
  const V step = hn::Set(d, args.integers == nullptr ? 1.0F : parts.step);
  float* HWY_RESTRICT scores = args.scores + query * ScanArgs::kRows;
  uint64_t hits = 0;
  for (int64_t row = 0; row < args.num_rows; row += lanes) {
    const V score = hn::MulAdd(
        hn::Mul(hn::LoadU(d, scores + row), step),
        hn::LoadU(d, args.scales + row),
        hn::Mul(hn::LoadU(d, args.offsets + row), hn::Set(d, parts.sum)));
    const V error = hn::MulAdd(
        hn::LoadU(d, args.widths + row),
        hn::Set(d, parts.weight),
        hn::Set(d, parts.slack));
    hn::StoreU(score, d, scores + row);
    // The comparisons are false for NaN.
    const auto is_below = hn::And(
        hn::Lt(hn::Add(score, error), hn::Set(d, parts.threshold)),
        hn::Le(hn::Abs(score), hn::Set(d, ScanArgs::kLargest)));
    uint8_t bits[8] = {};
    hn::StoreMaskBits(d, hn::Not(is_below), bits);
    uint64_t word;
    std::memcpy(&word, bits, sizeof(word));
    hits |= word << row;
  }
  args.hits[query] = hits & (~uint64_t{0} >> (ScanArgs::kRows - args.num_rows));
}

void Scan(const ScanArgs& args) {
  Multiply(args);
  for (int64_t query = 0; query < args.num_queries; ++query) {
    FindHits(args, query);
  }
}

void AddScanKernels(KernelTable& table) {
  table.scan = Scan;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();
