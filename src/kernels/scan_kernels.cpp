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

#include "src/kernels/quantized_codes-inl.h"
#include "src/kernels/storage-inl.h"

constexpr int64_t kGroup = 4;  // rows whose sums are added up together

// Rows of floats. Nothing behind a row is read.
template <class Row>
struct FloatRows {
  static constexpr int kBits = 0;
  using Element = typename Row::Element;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const void* row, int64_t column) {
    return Row::Load(d, static_cast<const Element*>(row) + column);
  }

  // The `count` last columns, and zeros.
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadLast(
      D d,
      const void* row,
      int64_t column,
      int64_t count) {
    Element last[hn::MaxLanes(d)] = {};
    std::memcpy(
        last,
        static_cast<const Element*>(row) + column,
        static_cast<size_t>(count) * sizeof(Element));
    return Row::Load(d, last);
  }
};

// The codes of quantized rows. Those behind a row are multiplied by the zeros of a query.
template <int kCodeBits>
struct CodeRows {
  static constexpr int kBits = kCodeBits;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const void* row, int64_t column) {
    return LoadCodes<kBits>(
        d, static_cast<const uint8_t*>(row) + sizeof(QuantizedRow), column);
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> LoadLast(
      D d,
      const void* row,
      int64_t column,
      int64_t /*count*/) {
    return Load(d, row, column);
  }
};

#if HWY_TARGET == HWY_SCALAR
template <class D, class V>
HWY_INLINE void StoreSums(D d, const V* vectors, float* to) {
  for (int64_t i = 0; i < kGroup; ++i) {
    hn::StoreU(vectors[i], d, to + i);
  }
}
#else
// Adds the halves of a vector until four lanes are left.
template <class D, class V>
HWY_INLINE void StoreFolded(D d, V sums, float* to) {
  if constexpr (hn::MaxLanes(d) == kGroup) {
    hn::StoreU(sums, d, to);
  } else {
    const hn::Half<D> half;
    StoreFolded(
        half,
        hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)),
        to);
  }
}

// to[i] = the sum of the lanes of vectors[i], for kGroup vectors.
template <class D, class V>
HWY_INLINE void StoreSums(D d, const V* vectors, float* to) {
  const hn::Repartition<uint64_t, D> pairs;
  const auto add_two = [&](V a, V b) HWY_ATTR {
    return hn::BitCast(
        pairs,
        hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto first = add_two(vectors[0], vectors[1]);
  const auto second = add_two(vectors[2], vectors[3]);
  StoreFolded(
      d,
      hn::Add(
          hn::BitCast(d, hn::InterleaveLower(pairs, first, second)),
          hn::BitCast(d, hn::InterleaveUpper(pairs, first, second))),
      to);
}
#endif

// The products of four rows and the first query. With kKeeps, other queries follow, and the
// rows are kept in args.scratch as floats.
template <class Rows, bool kKeeps>
HWY_INLINE void ScanFirstQuery(const ScanArgs& args, int64_t row) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t stride = ScanArgs::padded(args.dim);
  const void* const* rows = args.rows + row;
  V dots[kGroup] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  V sizes[kGroup] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  const auto add = [&](int64_t i, int64_t column, V query, V value) HWY_ATTR {
    dots[i] = hn::MulAdd(value, query, dots[i]);
    if constexpr (Rows::kBits == 0) {
      sizes[i] = hn::Add(sizes[i], hn::Abs(value));
    }
    if constexpr (kKeeps) {
      hn::StoreU(value, d, args.scratch + i * stride + column);
    }
  };
  int64_t column = 0;
  for (; column + lanes <= args.dim; column += lanes) {
    const V query = hn::LoadU(d, args.vectors + column);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroup; ++i) {
      add(i, column, query, Rows::Load(d, rows[i], column));
    }
  }
  if (column < args.dim) {
    const V query = hn::LoadU(d, args.vectors + column);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroup; ++i) {
      add(i,
          column,
          query,
          Rows::LoadLast(d, rows[i], column, args.dim - column));
    }
  }
  StoreSums(d, dots, args.scores + row);
  if constexpr (Rows::kBits == 0) {
    StoreSums(d, sizes, args.widths + row);
  } else {
    for (int64_t i = 0; i < kGroup; ++i) {
      QuantizedRow parts;
      std::memcpy(&parts, rows[i], sizeof(parts));
      args.scales[row + i] = parts.scale;
      args.offsets[row + i] = parts.offset;
    }
  }
}

// The products of the four rows in args.scratch and kQueries other queries.
template <int kQueries>
HWY_INLINE void ScanQueries(const ScanArgs& args, int64_t row, int64_t query) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t stride = ScanArgs::padded(args.dim);
  const float* HWY_RESTRICT vectors = args.vectors + query * stride;
  const float* HWY_RESTRICT rows = args.scratch;
  V dots[kQueries][kGroup];
#pragma GCC unroll 4
  for (V* dot : dots) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroup; ++i) {
      dot[i] = hn::Zero(d);
    }
  }
  for (int64_t column = 0; column < args.dim; column += lanes) {
    V values[kGroup];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroup; ++i) {
      values[i] = hn::LoadU(d, rows + i * stride + column);
    }
#pragma GCC unroll 4
    for (int64_t q = 0; q < kQueries; ++q) {
      const V number = hn::LoadU(d, vectors + q * stride + column);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kGroup; ++i) {
        dots[q][i] = hn::MulAdd(values[i], number, dots[q][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int64_t q = 0; q < kQueries; ++q) {
    StoreSums(d, dots[q], args.scores + (query + q) * ScanArgs::kRows + row);
  }
}

// The squared lengths of the four rows in args.scratch.
template <class Rows>
void StoreSquares(const ScanArgs& args, int64_t row, float* squares) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t stride = ScanArgs::padded(args.dim);
  V sums[kGroup] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (int64_t i = 0; i < kGroup; ++i) {
    const float* values = args.scratch + i * stride;
    for (int64_t column = 0; column < args.dim; column += lanes) {
      V number = hn::LoadU(d, values + column);
      if constexpr (Rows::kBits != 0) {
        number = hn::MulAdd(
            number,
            hn::Set(d, args.scales[row + i]),
            hn::Set(d, args.offsets[row + i]));
        if (column + lanes > args.dim) {
          number = hn::IfThenElseZero(
              hn::FirstN(d, static_cast<size_t>(args.dim - column)), number);
        }
      }
      sums[i] = hn::MulAdd(number, number, sums[i]);
    }
  }
  StoreSums(d, sums, squares + row);
}

// Replaces sizes with widths, and divides by the lengths unless `squares` is nullptr.
template <class Rows>
void FinishRows(const ScanArgs& args, const float* squares) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr auto kLargestCode = static_cast<float>((1 << Rows::kBits) - 1);
  for (int64_t row = 0; row < args.num_rows; row += lanes) {
    V scale = hn::Set(d, 1.0F);
    V offset = hn::Zero(d);
    V size = hn::LoadU(d, args.widths + row);
    if constexpr (Rows::kBits != 0) {
      scale = hn::LoadU(d, args.scales + row);
      offset = hn::LoadU(d, args.offsets + row);
      size = hn::MulAdd(scale, hn::Set(d, kLargestCode), hn::Abs(offset));
    }
    V width = hn::MulAdd(
        size,
        hn::Set(d, args.rounding),
        hn::MulAdd(scale, hn::Set(d, args.half_step), hn::Set(d, 0x1p-120F)));
    if (squares != nullptr) {
      const V square = hn::LoadU(d, squares + row);
      const auto is_safe = hn::And(
          hn::Ge(square, hn::Set(d, 0x1p-70F)),
          hn::Le(square, hn::Set(d, 0x1p100F)));
      const V inverse = hn::IfThenElseZero(
          is_safe, hn::Div(hn::Set(d, 1.0F), hn::Sqrt(square)));
      scale = hn::Mul(scale, inverse);
      offset = hn::Mul(offset, inverse);
      width = hn::IfThenElse(
          is_safe, hn::Mul(width, inverse), hn::Set(d, __builtin_inff()));
    }
    hn::StoreU(scale, d, args.scales + row);
    hn::StoreU(offset, d, args.offsets + row);
    hn::StoreU(width, d, args.widths + row);
  }
}

// Makes scores from products, and compares them with the threshold.
void FindHits(const ScanArgs& args, int64_t query) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const ScanQuery& parts = args.queries[query];
  const V sum = hn::Set(d, parts.sum);
  const V threshold = hn::Set(d, parts.threshold);
  float* scores = args.scores + query * ScanArgs::kRows;
  uint64_t hits = 0;
  for (int64_t row = 0; row < args.num_rows; row += lanes) {
    V score = hn::MulAdd(
        hn::LoadU(d, scores + row),
        hn::LoadU(d, args.scales + row),
        hn::Mul(sum, hn::LoadU(d, args.offsets + row)));
    V error = hn::MulAdd(
        hn::LoadU(d, args.widths + row),
        hn::Set(d, parts.weight),
        hn::Set(d, parts.slack));
    if (args.biases != nullptr) {
      const V bias = hn::LoadU(d, args.biases + row);
      score = hn::Add(score, bias);
      error = hn::MulAdd(hn::Abs(bias), hn::Set(d, 0x1p-20F), error);
    }
    hn::StoreU(score, d, scores + row);
    // The comparisons are false for NaN.
    const auto is_below = hn::And(
        hn::Lt(hn::Add(score, error), threshold),
        hn::Le(hn::Abs(score), hn::Set(d, ScanArgs::kLargest)));
    uint8_t bits[8] = {};
    hn::StoreMaskBits(d, hn::Not(is_below), bits);
    uint64_t word;
    std::memcpy(&word, bits, sizeof(word));
    hits |= word << row;
  }
  const int64_t unused = ScanArgs::kRows - args.num_rows;
  args.hits[query] = hits & (~uint64_t{0} >> unused);
}

template <class Rows>
void ScanRows(const ScanArgs& args) {
  // Queries whose sums are in registers at the same time.
  constexpr int64_t kTile =
      HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 != 0 ? 4 : 2;
  float squares[ScanArgs::kRows] = {};
  for (int64_t row = 0; row < args.num_rows; row += kGroup) {
    if (args.num_queries == 1 && !args.divide_by_length) {
      ScanFirstQuery<Rows, false>(args, row);
      continue;
    }
    ScanFirstQuery<Rows, true>(args, row);
    int64_t query = 1;
    for (; query + kTile <= args.num_queries; query += kTile) {
      ScanQueries<kTile>(args, row, query);
    }
    for (; query < args.num_queries; ++query) {
      ScanQueries<1>(args, row, query);
    }
    if (args.divide_by_length) {
      StoreSquares<Rows>(args, row, squares);
    }
  }
  FinishRows<Rows>(args, args.divide_by_length ? squares : nullptr);
  for (int64_t query = 0; query < args.num_queries; ++query) {
    FindHits(args, query);
  }
}

void Scan(const ScanArgs& args) {
  if (args.bits == 8) {
    ScanRows<CodeRows<8>>(args);
  } else if (args.bits == 4) {
    ScanRows<CodeRows<4>>(args);
  } else if (args.storage == Storage::kFloat32) {
    ScanRows<FloatRows<Float32Row>>(args);
  } else if (args.storage == Storage::kBFloat16) {
    ScanRows<FloatRows<BFloat16Row>>(args);
  } else {
    ScanRows<FloatRows<Float16Row>>(args);
  }
}

void AddScanKernels(KernelTable& table) {
  table.scan = Scan;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(AddScanKernels);

void add_scan_kernels(KernelTable& table) {
  HWY_DYNAMIC_DISPATCH(AddScanKernels)(table);
}

}  // namespace tessera::kernels
#endif
