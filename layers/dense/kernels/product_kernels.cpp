// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/dense/kernels/product_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#include "layers/dense/kernels/dense_kernels.h"
#include "src/kernels/prefetch.h"

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Why no library computes the products: at::mm calls MKL, which uses its AVX2 kernels on
// AMD, and whose bits depend on the addresses of the matrices. OpenBLAS is slower for these
// small matrices. oneDNN is about as fast on x86, but LibTorch hides its functions, and it
// has no such kernels for aarch64. With each of them, bias, relu and cross would be
// passes of their own. `./run bench --products` prints the times.

// The rows of a full tile. Its sums are two vectors per row, and have to stay in
// registers: there are 32 with AVX-512 and on aarch64, and 16 with AVX2 and SSE.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif

// The vectors of columns of a full tile.
constexpr int kTileVectors = 2;

// A tile multiplies this many rows of args.b, and as many columns of args.a, at a time. What
// it reads of both stays in the first-level cache.
constexpr int64_t kBlockDepth = 256;

#include "src/kernels/columns-inl.h"
#include "src/kernels/prefetch-inl.h"

// Loads and stores the vectors of a row of a tile. If kIsPartial, only the floats of the last
// vector that `mask` selects are in the matrix.
template <int kVectors, bool kIsPartial, class D>
struct RowVectors {
  D d;
  hn::Mask<D> mask;

  static constexpr bool is_partial(int vector) {
    return kIsPartial && vector + 1 == kVectors;
  }
  HWY_INLINE int64_t begin(int vector) const {
    return vector * static_cast<int64_t>(hn::Lanes(d));
  }
  HWY_INLINE int64_t width() const {
    return begin(kVectors);
  }
  HWY_INLINE hn::Vec<D> load(const float* row, int vector) const {
    const float* const from = row + begin(vector);
    return is_partial(vector) ? hn::MaskedLoad(mask, d, from)
                              : hn::LoadU(d, from);
  }
  HWY_INLINE void store(hn::Vec<D> values, float* row, int vector) const {
    if (is_partial(vector)) {
      hn::BlendedStore(values, mask, d, row + begin(vector));
    } else {
      hn::StoreU(values, d, row + begin(vector));
    }
  }
};

// Some columns of a block of args.b.
struct Panel {
  const float* data;
  int64_t stride;  // between rows
  int64_t depth;
};

// Only the first block of the depth begins the sums, and only the last one completes them.
struct Block {
  bool is_first;
  bool is_last;
};

// The sums of a tile. A struct would have a constructor, which GCC compiles without the
// instruction set on aarch64.
template <int kRows, int kVectors, class D>
using TileSums = hn::Vec<D>[kRows][kVectors];

// Calls f(r, c, sum) for each vector of a tile. The compiler keeps the sums in registers
// only if the loops are unrolled.
template <int kRows, int kVectors, class V, class F>
HWY_INLINE void ForSums(V (&sums)[kRows][kVectors], const F& f) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      f(i, j, sums[i][j]);
    }
  }
}

// Adds the products of b.depth columns of `a` and rows of `b`. If kIsTransposed is true, the
// elements of a column of `a` are adjacent in memory, otherwise those of a row.
template <int kRows, bool kIsTransposed, int kVectors, bool kIsPartial, class D>
HWY_INLINE void AddProducts(
    const RowVectors<kVectors, kIsPartial, D>& vectors,
    const float* HWY_RESTRICT a,
    int64_t a_stride,
    const Panel& b,
    TileSums<kRows, kVectors, D>& sums) {
  const float* HWY_RESTRICT factors = b.data;
  // A register addresses four rows, because an address can be the sum of two registers.
  constexpr int kGroup = 4;
  constexpr int kGroups = (kRows + kGroup - 1) / kGroup;
  const float* rows[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    rows[g] = kIsTransposed ? a : a + g * kGroup * a_stride;
  }
  const int64_t stride3 = 3 * a_stride;
  const auto add = [&](int64_t k) HWY_ATTR {
    hn::Vec<D> values[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      values[j] = vectors.load(factors, j);
    }
    factors += b.stride;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const int r = i % kGroup;
      const float* from = kIsTransposed
          ? rows[0] + i
          : rows[i / kGroup] + (r == 3 ? stride3 : r * a_stride) + k;
      const hn::Vec<D> factor = hn::Set(vectors.d, *from);
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        sums[i][j] = hn::MulAdd(factor, values[j], sums[i][j]);
      }
    }
    if (kIsTransposed) {
      rows[0] += a_stride;
    }
  };
  // With 16 registers, GCC moves sums to memory if it unrolls the loop.
  constexpr int64_t kUnrolled = kTileRows > 6 ? 4 : 1;
  int64_t k = 0;
  for (; k + kUnrolled <= b.depth; k += kUnrolled) {
#pragma GCC unroll 16
    for (int64_t u = 0; u < kUnrolled; ++u) {
      add(u);
    }
    if (!kIsTransposed) {
#pragma GCC unroll 16
      for (int g = 0; g < kGroups; ++g) {
        rows[g] += kUnrolled;
      }
    }
  }
  for (int64_t rest = 0; k + rest < b.depth; ++rest) {
    add(rest);
  }
}

// Prefetches kRows rows of `width` columns, unless `matrix` is nullptr. The processor does not
// foresee lines that are a row apart. On Zen 3, products of 64 x 32 and 32 x 640 numbers with a
// cross, whose rows were not in the second-level cache, took 0.5 to 0.7 times as long with these
// prefetches. It must be inlined, because GCC removes calls of functions that only prefetch.
template <int kRows>
HWY_INLINE void PrefetchTile(
    const float* matrix,
    int64_t stride,
    int64_t row,
    int64_t column,
    int64_t width) {
  if (matrix == nullptr) {
    return;
  }
  constexpr int64_t kLine = kLineBytes / int64_t{sizeof(float)};
  const int64_t step = HWY_MIN(width, kLine);
  // A tile often begins inside a cache line that the prefetch of the tile to its left has
  // covered. So this prefetches the lines of columns 15, 31, ..., not those of 0, 16, ...
  for (int64_t last = step - 1; last < width; last += step) {
    const float* const from = matrix + row * stride + column + last;
    for (int64_t i = 0; i < kRows; ++i) {
      PrefetchLine<CacheLevel::kSecond>(from + i * stride);
    }
  }
}

// Computes kRows rows and kVectors vectors of columns of the result for one block of the
// depth. `a` points to the first factor, and (row, column) is the place of the first result.
template <int kRows, int kVectors, bool kIsPartial, class D>
HWY_INLINE void ComputeTile(
    const RowVectors<kVectors, kIsPartial, D>& vectors,
    const ProductArgs& args,
    const float* a,
    const Panel& b,
    Block block,
    int64_t row,
    int64_t column) {
  using V = hn::Vec<D>;
  const D d = vectors.d;
  // These are copies, because the compiler has to assume that a store changes args.
  const int64_t stride = args.out_stride;
  const int64_t first = row * stride + column;
  float* const out = args.out;
  TileSums<kRows, kVectors, D> sums;
  if (args.adds || !block.is_first) {
    ForSums(sums, [&](int i, int j, V& sum) HWY_ATTR {
      sum = vectors.load(out + first + i * stride, j);
    });
  } else if (args.bias != nullptr) {
    const float* const bias = args.bias + column;
    ForSums(sums, [&](int, int j, V& sum) HWY_ATTR {
      sum = vectors.load(bias, j);
    });
  } else {
    ForSums(sums, [&](int, int, V& sum) HWY_ATTR { sum = hn::Zero(d); });
  }
  if (args.added != nullptr && block.is_first) {
    const float* const added = args.added + first;
    ForSums(sums, [&](int i, int j, V& sum) HWY_ATTR {
      sum = hn::Add(sum, vectors.load(added + i * stride, j));
    });
  }
  const int64_t next = column + vectors.width();
  if (block.is_first && next < args.columns) {
    const int64_t width = vectors.width();
    PrefetchTile<kRows>(out, stride, row, next, width);
    PrefetchTile<kRows>(args.added, stride, row, next, width);
    PrefetchTile<kRows>(
        args.relu_output, args.relu_output_stride, row, next, width);
    PrefetchTile<kRows>(args.x0, stride, row, next, width);
    PrefetchTile<kRows>(args.crossed, stride, row, next, width);
  }

  if (args.a_column_stride == 1) {
    AddProducts<kRows, false>(vectors, a, args.a_row_stride, b, sums);
  } else {
    AddProducts<kRows, true>(vectors, a, args.a_column_stride, b, sums);
  }

  if (block.is_last) {
    const V zero = hn::Zero(d);
    // A comparison with NaN is false, so NaN stays NaN.
    if (args.has_relu) {
      ForSums(sums, [&](int, int, V& sum) HWY_ATTR {
        sum = hn::IfThenZeroElse(hn::Lt(sum, zero), sum);
      });
    }
    if (args.relu_output != nullptr) {
      const int64_t output_stride = args.relu_output_stride;
      const float* const outputs =
          args.relu_output + row * output_stride + column;
      ForSums(sums, [&](int i, int j, V& sum) HWY_ATTR {
        const V output = vectors.load(outputs + i * output_stride, j);
        sum = hn::IfThenZeroElse(hn::Le(output, zero), sum);
      });
    }
    if (args.crossed != nullptr) {
      const float* const x0 = args.x0 + first;
      float* const crossed = args.crossed + first;
      ForSums(sums, [&](int i, int j, const V& sum) HWY_ATTR {
        const int64_t at = i * stride;
        const V factor = vectors.load(x0 + at, j);
        vectors.store(hn::MulAdd(factor, sum, factor), crossed + at, j);
      });
    }
  }
  if (out != nullptr) {
    ForSums(sums, [&](int i, int j, const V& sum) HWY_ATTR {
      vectors.store(sum, out + first + i * stride, j);
    });
  }
}

// Copies kVectors vectors of each row of a block of b, so that they are adjacent. Prefetches
// the line in which the next columns end, because the processor does not foresee lines that
// are a row apart. With this prefetch, the weights' gradient of a layer of 780 inputs took
// 0.87 times as long on Zen 3.
template <int kVectors, bool kIsPartial, class D>
HWY_INLINE void Pack(
    const RowVectors<kVectors, kIsPartial, D>& vectors,
    const float* b,
    int64_t stride,
    int64_t depth,
    float* packed) {
  const int64_t last_of_next = 2 * vectors.width() - 1;
  for (int64_t k = 0; k < depth; ++k) {
    PrefetchLine<CacheLevel::kSecond>(b + k * stride + last_of_next);
    for (int j = 0; j < kVectors; ++j) {
      hn::StoreU(
          vectors.load(b + k * stride, j),
          vectors.d,
          packed + k * vectors.width() + vectors.begin(j));
    }
  }
}

// Computes all rows and columns for the block of the depth that begins at `begin`.
struct ProductBlock {
  const ProductArgs& args;
  // Has space for the columns of a full tile in a block. nullptr: b is not copied.
  float* packed;
  int64_t begin;
  int64_t depth;

  HWY_INLINE void ComputeAll() const {
    const hn::ScalableTag<float> d;
    using D = std::remove_const_t<decltype(d)>;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t column = 0;
    for (; column + 2 * lanes <= args.columns; column += 2 * lanes) {
      Compute(RowVectors<2, false, D>{d, {}}, column);
    }
    const int64_t rest = args.columns - column;
#if HWY_TARGET <= HWY_AVX2
    // Highway's HWY_MEM_OPS_MIGHT_FAULT says that with AVX2, a load may fault at an
    // address that its mask excludes, because AMD's manual does not rule this out. We
    // know of no processor on which this happens.
    if (rest > lanes) {
      const auto count = static_cast<size_t>(rest - lanes);
      Compute(RowVectors<2, true, D>{d, hn::FirstN(d, count)}, column);
    } else if (rest > 0) {
      const auto count = static_cast<size_t>(rest);
      Compute(RowVectors<1, true, D>{d, hn::FirstN(d, count)}, column);
    }
#else
    // On these targets, a masked load would read past the end of the matrix.
    if (rest >= lanes) {
      Compute(RowVectors<1, false, D>{d, {}}, column);
      column += lanes;
    }
    ForLastColumns(args.columns, column, *this);
#endif
  }

  // Computes the columns of one vector.
  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    Compute(RowVectors<1, false, D>{d, {}}, column);
  }

 private:
  template <int kVectors, bool kIsPartial, class D>
  HWY_INLINE void Compute(
      const RowVectors<kVectors, kIsPartial, D>& vectors,
      int64_t column) const {
    Panel b{args.b + begin * args.b_stride + column, args.b_stride, depth};
    if (packed != nullptr) {
      Pack(vectors, b.data, b.stride, depth, packed);
      b.data = packed;
      b.stride = vectors.width();
    }
    const Block block{begin == 0, begin + depth == args.depth};
    const float* a = args.a + begin * args.a_column_stride;
    int64_t row = 0;
    const auto compute = [&](auto rows) HWY_ATTR {
      constexpr int kRows = decltype(rows)::value;
      // Two tiles of four rows are faster than a tile of six and one of two.
      for (; row + kRows <= args.rows && (kRows <= 4 || args.rows - row != 8);
           row += kRows) {
        ComputeTile<kRows>(
            vectors, args, a + row * args.a_row_stride, b, block, row, column);
      }
    };
    compute(std::integral_constant<int, kTileRows>());
    compute(std::integral_constant<int, 4>());
    compute(std::integral_constant<int, 2>());
    compute(std::integral_constant<int, 1>());
  }
};

// Returns whether it pays to copy those columns of `b` that a tile reads, so that they
// are adjacent in memory. All rows of `a` use the same copy. Without a copy, many rows of
// `b` that are far from each other do not stay in the first-level cache, because they
// share few of its sets. If not all rows of `b` begin at a cache line, many vectors
// belong to two lines, and a copy pays with a smaller depth, too. On Zen 3, a product of
// 128 x 64 and 64 x 780 numbers, where not all rows of `b` began at a line, took 0.81 to
// 0.84 times as long with the copy.
HWY_INLINE bool PaysToPack(const ProductArgs& args) {
  constexpr int64_t kFewestRows = 24;
  constexpr int64_t kDepthInCache = 64;
  constexpr int64_t kUnalignedDepth = 32;
  constexpr int64_t kNearStride = 32;
  constexpr int64_t kLine = kLineBytes / int64_t{sizeof(float)};
  const bool is_aligned = args.b_stride % kLine == 0;
  return args.rows >= kFewestRows && args.b_stride > kNearStride &&
      (is_aligned ? args.depth > kDepthInCache : args.depth >= kUnalignedDepth);
}

void Product(const ProductArgs& args) {
  constexpr int64_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);
  HWY_ALIGN float memory[kBlockDepth * kTileVectors * kMaxLanes];
  // Without out, there is no place for the sums of a block.
  const int64_t size = args.out == nullptr ? args.depth : kBlockDepth;
  const bool packs = PaysToPack(args) && size <= kBlockDepth;
  int64_t begin = 0;
  do {
    const int64_t depth = HWY_MIN(size, args.depth - begin);
    ProductBlock{args, packs ? memory : nullptr, begin, depth}.ComputeAll();
    begin += depth;
  } while (begin < args.depth);
}

void AddProductKernels(DenseKernelTable& table) {
  table.product = Product;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(AddProductKernels);

void add_product_kernels(DenseKernelTable& table) {
  HWY_DYNAMIC_DISPATCH(AddProductKernels)(table);
}

}  // namespace tessera::kernels
#endif
