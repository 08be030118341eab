// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/product_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "src/kernels/kernels.h"
#include "src/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// at::mm calls MKL, which uses its AVX2 kernels on AMD. On a core of Zen 5, that gives 105
// to 114 GFLOP/s for the blocks of a DLRM and a DCN-v2. This file gives 200 to 285 with
// AVX-512 and 120 to 140 with AVX2. oneDNN's brgemm gives 245 to 280, but LibTorch has it
// for AVX-512 only, and bias, relu and cross would need operators of their own.

// The rows of a full tile. Its sums are two vectors per row, and have to stay in
// registers: there are 32 with AVX-512 and on aarch64, and 16 with AVX2 and SSE.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 6;
#endif

constexpr int64_t kFloatsPerLine = 16;

#include "src/kernels/columns-inl.h"

// Prefetches what a tile reads and writes after its sums, while it computes them.
HWY_INLINE void PrefetchResults(
    const ProductArgs& args,
    int64_t row,
    int64_t rows,
    int64_t column,
    int64_t columns) {
  for (int64_t r = row; r < row + rows; ++r) {
    for (int64_t c = column; c < column + columns; c += kFloatsPerLine) {
      const int64_t at = r * args.out_stride + c;
      if (args.out != nullptr) {
        hwy::Prefetch(args.out + at);
      }
      if (args.crossed != nullptr) {
        hwy::Prefetch(args.x0 + at);
        hwy::Prefetch(args.crossed + at);
      }
    }
  }
}

// Computes kRows rows and kVectors vectors of columns of the result, whose first element
// is at (row, column).
template <int kRows, int kVectors, class D>
HWY_INLINE void ComputeTile(
    D d,
    const ProductArgs& args,
    int64_t row,
    int64_t column) {
  using V = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));

  V sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      const int64_t c = column + j * lanes;
      sums[i][j] = args.adds
          ? hn::LoadU(d, args.out + (row + i) * args.out_stride + c)
          : args.bias != nullptr ? hn::LoadU(d, args.bias + c)
                                 : hn::Zero(d);
    }
  }

  PrefetchResults(args, row, kRows, column, kVectors * lanes);
  // Whether to prefetch the rows of args.a that the next tile reads. The tiles of later
  // columns find all of args.a in the cache.
  const bool prefetches_a =
      column == 0 && args.a_column_stride == 1 && row + 2 * kRows <= args.rows;
  const float* a = args.a + row * args.a_row_stride;
  const float* b = args.b + column;
  for (int64_t k = 0; k < args.depth; ++k) {
    if (prefetches_a && k % kFloatsPerLine == 0) {
      for (int i = 0; i < kRows; ++i) {
        hwy::Prefetch(a + (kRows + i) * args.a_row_stride);
      }
    }
    V factors[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      factors[j] = hn::LoadU(d, b + j * lanes);
    }
    for (int i = 0; i < kRows; ++i) {
      const V own = hn::Set(d, a[i * args.a_row_stride]);
      for (int j = 0; j < kVectors; ++j) {
        sums[i][j] = hn::MulAdd(own, factors[j], sums[i][j]);
      }
    }
    a += args.a_column_stride;
    b += args.b_stride;
  }

  const V zero = hn::Zero(d);
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      const int64_t c = column + j * lanes;
      const int64_t at = (row + i) * args.out_stride + c;
      V sum = sums[i][j];
      // A comparison with NaN is false, so NaN stays NaN.
      if (args.has_relu) {
        sum = hn::IfThenZeroElse(hn::Lt(sum, zero), sum);
      }
      if (args.relu_output != nullptr) {
        const V output = hn::LoadU(
            d, args.relu_output + (row + i) * args.relu_output_stride + c);
        sum = hn::IfThenZeroElse(hn::Le(output, zero), sum);
      }
      if (args.crossed != nullptr) {
        const V crossed = hn::MulAdd(
            hn::LoadU(d, args.x0 + at), sum, hn::LoadU(d, args.x + at));
        hn::StoreU(crossed, d, args.crossed + at);
      }
      if (args.out != nullptr) {
        hn::StoreU(sum, d, args.out + at);
      }
    }
  }
}

// Computes all rows of some columns. The rows share the columns of args.b, which stay in
// the first-level cache.
template <int kVectors, class D>
HWY_INLINE void ComputeColumns(D d, const ProductArgs& args, int64_t column) {
  int64_t row = 0;
  for (; row + kTileRows <= args.rows; row += kTileRows) {
    ComputeTile<kTileRows, kVectors>(d, args, row, column);
  }
  for (; row + 2 <= args.rows; row += 2) {
    ComputeTile<2, kVectors>(d, args, row, column);
  }
  if (row < args.rows) {
    ComputeTile<1, kVectors>(d, args, row, column);
  }
}

struct ProductColumns {
  const ProductArgs& args;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    ComputeColumns<1>(d, args, column);
  }
  template <class D>
  HWY_INLINE void two(D d, int64_t column) const {
    ComputeColumns<2>(d, args, column);
  }
};

void Product(const ProductArgs& args) {
  ForTwoVectors(args.columns, ProductColumns{args});
}

void AddProductKernels(KernelTable& table) {
  table.product = Product;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(AddProductKernels);

void add_product_kernels(KernelTable& table) {
  HWY_DYNAMIC_DISPATCH(AddProductKernels)(table);
}

}  // namespace tessera::kernels
#endif
