// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/dense/kernels/interaction_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#include <hwy/aligned_allocator.h>

#include "layers/dense/kernels/dense_kernels.h"
#include "src/kernels/prefetch.h"

#include <new>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "src/kernels/columns-inl.h"
#include "src/kernels/prefetch-inl.h"

// The kernels of dot products compute this many examples at once. Each example has one lane of
// a vector. If the lanes held the features of one example, some would be left over, and each
// factor would have to be copied to all lanes. On Zen 3, the dots of 27 features of 64 floats
// and their gradients take 0.5 to 0.8 times as long as with that layout.
constexpr int64_t kExamples = HWY_LANES(float);
using ExampleTag = hn::ScalableTag<float>;
using ExampleVector = hn::Vec<ExampleTag>;

// A matrix [n, kExamples], whose row is a vector.
HWY_INLINE ExampleVector LoadVector(const float* matrix, int64_t row) {
  return hn::Load(ExampleTag(), matrix + row * kExamples);
}
HWY_INLINE void StoreVector(ExampleVector values, float* matrix, int64_t row) {
  hn::Store(values, ExampleTag(), matrix + row * kExamples);
}

// Writes lane e of `values` to rows[e][column].
HWY_INLINE void StoreColumn(
    ExampleVector values,
    float* const* rows,
    int64_t column) {
  HWY_ALIGN float lanes[kExamples];
  StoreVector(values, lanes, 0);
  for (int64_t e = 0; e < kExamples; ++e) {
    rows[e][column] = lanes[e];
  }
}

// Highway interleaves the lanes of each block of 16 bytes, so this many columns are stored
// together.
constexpr int64_t kBlock = 4;

#if HWY_TARGET != HWY_SCALAR

// Block b of the result has four columns of rows[4 * b], from `column` on.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(
    D d,
    const float* const* rows,
    int64_t column) {
  if constexpr (hn::MaxLanes(D()) == kBlock) {
    return hn::LoadU(d, rows[0] + column);
  } else {
    const hn::Half<D> half;
    const auto upper = LoadBlocks(half, rows + hn::MaxLanes(D()) / 2, column);
    return hn::Combine(d, upper, LoadBlocks(half, rows, column));
  }
}

// The reverse of LoadBlocks().
template <class D>
HWY_INLINE void StoreBlocks(
    D d,
    hn::Vec<D> values,
    float* const* rows,
    int64_t column) {
  if constexpr (hn::MaxLanes(D()) == kBlock) {
    hn::StoreU(values, d, rows[0] + column);
  } else {
    const hn::Half<D> half;
    StoreBlocks(half, hn::LowerHalf(half, values), rows, column);
    StoreBlocks(
        half,
        hn::UpperHalf(half, values),
        rows + hn::MaxLanes(D()) / 2,
        column);
  }
}

// Transposes the 4 x 4 lanes of each block.
template <class V>
HWY_INLINE void TransposeBlocks(V (&values)[kBlock]) {
  const ExampleTag d;
  const hn::Repartition<uint64_t, ExampleTag> pairs;
  const auto lower01 =
      hn::BitCast(pairs, hn::InterleaveLower(d, values[0], values[1]));
  const auto lower23 =
      hn::BitCast(pairs, hn::InterleaveLower(d, values[2], values[3]));
  const auto upper01 =
      hn::BitCast(pairs, hn::InterleaveUpper(d, values[0], values[1]));
  const auto upper23 =
      hn::BitCast(pairs, hn::InterleaveUpper(d, values[2], values[3]));
  values[0] = hn::BitCast(d, hn::InterleaveLower(pairs, lower01, lower23));
  values[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, lower01, lower23));
  values[2] = hn::BitCast(d, hn::InterleaveLower(pairs, upper01, upper23));
  values[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, upper01, upper23));
}

// rows[e][column + k] = values[k][e]. Changes `values`.
template <class V>
HWY_INLINE void StoreColumns(
    V (&values)[kBlock],
    float* const* rows,
    int64_t column) {
  TransposeBlocks(values);
  for (int64_t i = 0; i < kBlock; ++i) {
    StoreBlocks(ExampleTag(), values[i], rows + i, column);
  }
}

#else

// Like the other StoreColumns(), for vectors of one lane.
template <class V>
HWY_INLINE void StoreColumns(
    V (&values)[kBlock],
    float* const* rows,
    int64_t column) {
  for (int64_t i = 0; i < kBlock; ++i) {
    StoreColumn(values[i], rows, column + i);
  }
}

#endif

// columns[k][e] = rows[e][k], for kExamples rows of `size` floats
HWY_INLINE void TransposeRows(
    const float* const* rows,
    int64_t size,
    float* columns) {
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; k + kBlock <= size; k += kBlock) {
    ExampleVector values[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) {
      values[i] = LoadBlocks(ExampleTag(), rows + i, k);
    }
    TransposeBlocks(values);
    for (int64_t i = 0; i < kBlock; ++i) {
      StoreVector(values[i], columns, k + i);
    }
  }
#endif
  for (; k < size; ++k) {
    for (int64_t e = 0; e < kExamples; ++e) {
      columns[k * kExamples + e] = rows[e][k];
    }
  }
}

// The index of the first pair of feature i with an earlier feature.
HWY_INLINE int64_t FirstPair(const PairwiseDotsArgs& args, int64_t i) {
  return i * (args.with_self ? i + 1 : i - 1) / 2;
}

// The number of pairs of feature i with earlier features, and with itself if with_self.
HWY_INLINE int64_t CountPairsOf(const PairwiseDotsArgs& args, int64_t i) {
  return args.with_self ? i + 1 : i;
}

HWY_INLINE int64_t CountPairs(const PairwiseDotsArgs& args) {
  return FirstPair(args, args.num_features);
}

// Finds the rows of kExamples examples from `example` on. After the last example, its row
// repeats.
template <class Float>
HWY_INLINE void FindRows(
    const PairwiseDotsArgs& args,
    const FeatureRows<Float>& feature,
    int64_t example,
    Float** rows) {
  for (int64_t e = 0; e < kExamples; ++e) {
    rows[e] = feature.first +
        HWY_MIN(example + e, args.end_example - 1) * feature.stride;
  }
}

// Finds the rows to which the results of kExamples examples from `example` on are
// written. Results beyond the last example are written to `unused`.
HWY_INLINE void FindResultRows(
    const PairwiseDotsArgs& args,
    const FeatureRows<float>& results,
    int64_t example,
    float* unused,
    float** rows) {
  for (int64_t e = 0; e < kExamples; ++e) {
    rows[e] = example + e < args.end_example
        ? results.first + (example + e) * results.stride
        : unused;
  }
}

// Prefetches the rows of the next examples. The processor does not prefetch so many arrays at
// once by itself.
template <class Float>
HWY_INLINE void PrefetchNextRows(
    const PairwiseDotsArgs& args,
    const FeatureRows<Float>& feature,
    int64_t example,
    int64_t size) {
  constexpr int64_t kLine = kLineBytes / int64_t{sizeof(float)};
  const int64_t end = HWY_MIN(example + 2 * kExamples, args.end_example);
  for (int64_t later = example + kExamples; later < end; ++later) {
    const Float* row = feature.first + later * feature.stride;
    for (int64_t i = 0; i < size; i += kLine) {
      PrefetchLine<CacheLevel::kSecond>(row + i);
    }
    PrefetchLine<CacheLevel::kSecond>(row + HWY_MAX(size, 1) - 1);
  }
}

// columns[i][k][e] = column k of feature i of example e, for the features from `begin` on
HWY_INLINE void TransposeFeatures(
    const PairwiseDotsArgs& args,
    int64_t begin,
    int64_t example,
    float* columns) {
  for (int64_t i = begin; i < args.num_features; ++i) {
    const float* rows[kExamples];
    FindRows(args, args.features[i], example, rows);
    PrefetchNextRows(args, args.features[i], example, args.dim);
    TransposeRows(rows, args.dim, columns + i * args.dim * kExamples);
  }
}

// This many features are computed together, kBlock sums each. All sums and their factors then
// fit into the 16 registers of AVX2.
constexpr int kGroup = 3;

// Returns how many features at the beginning have the same row in all examples.
HWY_INLINE int64_t CountConstant(const PairwiseDotsArgs& args) {
  int64_t count = 0;
  while (count < args.num_features && args.features[count].stride == 0) {
    ++count;
  }
  return count;
}

// Calls f(i, std::integral_constant<int, size>()) for groups of kSize features from `begin`
// on, and for the rest.
template <int kSize, class F>
HWY_INLINE void ForGroups(int64_t begin, int64_t end, const F& f) {
  for (; begin + kSize <= end; begin += kSize) {
    f(begin, std::integral_constant<int, kSize>());
  }
  if constexpr (kSize > 1) {
    ForGroups<kSize - 1>(begin, end, f);
  }
}

// Computes the dots of pairs of features, for kExamples examples.
struct DotsOfPairs {
  const PairwiseDotsArgs& args;
  // [num_features + kBlock - 1, dim, kExamples]. The last block may have fewer features, and is
  // computed as a whole.
  const float* columns;
  float* const* rows;  // kExamples rows of dots

  // Computes the pairs of each feature from `begin` on with all features before it.
  HWY_INLINE void All(int64_t begin) const {
    ForGroups<kGroup>(
        begin, args.num_features, [&](int64_t i, auto count) HWY_ATTR {
          constexpr int kRows = decltype(count)::value;
          // A block that a feature's last pairs do not fill overwrites the first pairs of the
          // next feature. So it is stored before the blocks of those pairs.
          const int64_t full = CountPairsOf(args, i) / kBlock * kBlock;
          for (int64_t j = full; j < CountPairsOf(args, i + kRows - 1);
               j += kBlock) {
            Block<kRows, false>(i, j);
          }
          for (int64_t j = 0; j < full; j += kBlock) {
            Block<kRows, true>(i, j);
          }
        });
  }

 private:
  // Computes the dot products of kRows features from i on with kBlock features from j on,
  // and writes those that belong to the result. If kIsFull is true, all of them do. With
  // fewer sums at a time, the additions would wait for each other.
  template <int kRows, bool kIsFull>
  HWY_INLINE void Block(int64_t i, int64_t j) const {
    const ExampleTag d;
    ExampleVector sums[kRows][kBlock];
    const float* const x = columns + i * args.dim * kExamples;
    const float* const y = columns + j * args.dim * kExamples;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kBlock; ++c) {
        sums[r][c] = hn::Zero(d);
      }
    }
    for (int64_t k = 0; k < args.dim; ++k) {
      ExampleVector own[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        own[r] = LoadVector(x, r * args.dim + k);
      }
#pragma GCC unroll 16
      for (int c = 0; c < kBlock; ++c) {
        const auto other = LoadVector(y, c * args.dim + k);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          sums[r][c] = hn::MulAdd(own[r], other, sums[r][c]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      Store<kIsFull>(sums[r], i + r, j);
    }
  }

  // Writes the dots of feature i with kBlock features from j on.
  template <bool kIsFull>
  HWY_INLINE void Store(ExampleVector (&dots)[kBlock], int64_t i, int64_t j)
      const {
    const int64_t pair = FirstPair(args, i) + j;
    if (kIsFull ||
        (j < CountPairsOf(args, i) && pair + kBlock <= CountPairs(args))) {
      StoreColumns(dots, rows, pair);
      return;
    }
#pragma GCC unroll 16
    for (int64_t c = 0; c < kBlock; ++c) {
      if (j + c < CountPairsOf(args, i)) {
        StoreColumn(dots[c], rows, pair + c);
      }
    }
  }
};

// Memory for `count` vectors.
HWY_INLINE hwy::AlignedFreeUniquePtr<float[]> AllocateVectors(int64_t count) {
  auto memory =
      hwy::AllocateAligned<float>(static_cast<size_t>(count * kExamples));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

// Copies the dots of the constant features with each other from the first example to `rows`.
HWY_INLINE void CopyConstantDots(
    const PairwiseDotsArgs& args,
    int64_t constant,
    float* const* rows) {
  const float* first = args.dots + args.begin_example * CountPairs(args);
  for (int64_t e = 0; e < kExamples; ++e) {
    for (int64_t pair = 0; pair < FirstPair(args, constant); ++pair) {
      rows[e][pair] = first[pair];
    }
  }
}

void PairwiseDots(const PairwiseDotsArgs& args) {
  const int64_t pairs = CountPairs(args);
  const int64_t size = args.num_features * args.dim;
  const int64_t padded_size = size + (kBlock - 1) * args.dim;
  const auto columns = AllocateVectors(padded_size);
  for (int64_t k = size; k < padded_size; ++k) {
    StoreVector(hn::Zero(ExampleTag()), columns.get(), k);
  }
  const auto unused = AllocateVectors(pairs / kExamples + 1);
  const int64_t constant = CountConstant(args);
  for (int64_t b = args.begin_example; b < args.end_example; b += kExamples) {
    float* rows[kExamples];
    FindResultRows(args, {args.dots, pairs}, b, unused.get(), rows);
    int64_t begin = 0;
    if (b > args.begin_example) {
      // `columns` keeps the constant features.
      begin = constant;
      CopyConstantDots(args, constant, rows);
    }
    TransposeFeatures(args, begin, b, columns.get());
    DotsOfPairs{args, columns.get(), rows}.All(begin);
  }
}

// Computes the gradients of the features of examples.
struct GradientsOfFeatures {
  const PairwiseDotsArgs& args;
  const float* columns;  // [num_features, dim, kExamples]
  const float* dots_gradient;  // [pairs, kExamples]

  // Computes kColumns columns of the gradients of kCount features from i on: sums of the other
  // features in their order, each times the gradient of its pair.
  template <int kCount, int kColumns>
  HWY_INLINE void Columns(
      int64_t i,
      int64_t column,
      ExampleVector (&sums)[kCount][kColumns]) const {
    const ExampleTag d;
#pragma GCC unroll 16
    for (int f = 0; f < kCount; ++f) {
#pragma GCC unroll 16
      for (int k = 0; k < kColumns; ++k) {
        sums[f][k] = hn::Zero(d);
      }
    }
    const float* x = columns + column * kExamples;
    const int64_t stride = args.dim * kExamples;
    // The gradients of each feature's pairs with earlier features.
    const float* earlier[kCount];
#pragma GCC unroll 16
    for (int f = 0; f < kCount; ++f) {
      earlier[f] = dots_gradient + FirstPair(args, i + f) * kExamples;
    }
    for (int64_t j = 0; j < i; ++j) {
      Add(
          x, [&](int f) HWY_ATTR { return LoadVector(earlier[f], j); }, sums);
      x += stride;
    }
#pragma GCC unroll 16
    for (int j = 0; j < kCount; ++j) {
      AddOwn(i, j, x, earlier, sums);
      x += stride;
    }
    // The gradients of a later feature's pairs with features i, i + 1 and so on.
    const float* later =
        dots_gradient + (FirstPair(args, i + kCount) + i) * kExamples;
    for (int64_t j = i + kCount; j < args.num_features; ++j) {
      Add(
          x, [&](int f) HWY_ATTR { return LoadVector(later, f); }, sums);
      x += stride;
      later += CountPairsOf(args, j) * kExamples;
    }
  }

  // Adds kColumns columns x of a feature, times factor(f), to the sums of each feature f.
  template <int kCount, int kColumns, class F>
  HWY_INLINE void Add(
      const float* x,
      const F& factor,
      ExampleVector (&sums)[kCount][kColumns]) const {
    ExampleVector factors[kCount];
#pragma GCC unroll 16
    for (int f = 0; f < kCount; ++f) {
      factors[f] = factor(f);
    }
#pragma GCC unroll 16
    for (int k = 0; k < kColumns; ++k) {
      const auto value = LoadVector(x, k);
#pragma GCC unroll 16
      for (int f = 0; f < kCount; ++f) {
        sums[f][k] = hn::MulAdd(factors[f], value, sums[f][k]);
      }
    }
  }

  // Adds the columns `x` of feature i + j to the sums of the features from i on. Feature
  // i + j is one of these kCount features. It is added to its own sum only if
  // args.with_self is set.
  template <int kCount, int kColumns>
  HWY_INLINE void AddOwn(
      int64_t i,
      int j,
      const float* x,
      const float* const (&earlier)[kCount],
      ExampleVector (&sums)[kCount][kColumns]) const {
#pragma GCC unroll 16
    for (int f = 0; f < kCount; ++f) {
      const bool is_self = j == f;
      if (is_self && !args.with_self) {
        continue;
      }
      auto factor = LoadVector(earlier[HWY_MAX(f, j)], i + HWY_MIN(f, j));
      if (is_self) {
        factor = hn::Add(factor, factor);  // the gradient of x . x is 2 x
      }
#pragma GCC unroll 16
      for (int k = 0; k < kColumns; ++k) {
        sums[f][k] = hn::MulAdd(factor, LoadVector(x, k), sums[f][k]);
      }
    }
  }

  // Computes the gradients of kCount features. The gradients of feature i + f are written to
  // rows[f * kExamples ...].
  template <int kCount>
  HWY_INLINE void Features(int64_t i, float* const* rows) const {
    int64_t column = 0;
    for (; column + kBlock <= args.dim; column += kBlock) {
      ExampleVector sums[kCount][kBlock];
      Columns<kCount, kBlock>(i, column, sums);
      for (int f = 0; f < kCount; ++f) {
        StoreColumns(sums[f], rows + f * kExamples, column);
      }
    }
    for (; column < args.dim; ++column) {
      ExampleVector sums[kCount][1];
      Columns<kCount, 1>(i, column, sums);
      for (int f = 0; f < kCount; ++f) {
        StoreColumn(sums[f][0], rows + f * kExamples, column);
      }
    }
  }
};

void PairwiseDotsGradient(const PairwiseDotsArgs& args) {
  const int64_t pairs = CountPairs(args);
  const auto columns = AllocateVectors(args.num_features * args.dim);
  const auto dots_gradient = AllocateVectors(pairs + 1);
  const auto unused = AllocateVectors(args.dim / kExamples + 1);
  for (int64_t b = args.begin_example; b < args.end_example; b += kExamples) {
    TransposeFeatures(args, 0, b, columns.get());
    const float* rows[kExamples];
    FindRows(args, args.dots_gradient, b, rows);
    PrefetchNextRows(args, args.dots_gradient, b, pairs);
    TransposeRows(rows, pairs, dots_gradient.get());
    const GradientsOfFeatures gradients{
        args, columns.get(), dots_gradient.get()};
    const auto compute = [&](int64_t i, auto count) HWY_ATTR {
      constexpr int kCount = decltype(count)::value;
      float* out[kCount * kExamples];
      for (int f = 0; f < kCount; ++f) {
        const FeatureRows<float>& gradient = args.gradients[i + f];
        PrefetchNextRows(args, gradient, b, args.dim);
        FindResultRows(args, gradient, b, unused.get(), out + f * kExamples);
      }
      gradients.Features<kCount>(i, out);
    };
    ForGroups<kGroup>(0, args.num_features, compute);
  }
}

struct CrossGradientColumns {
  CrossGradientArgs args;  // a copy, because stores could change the original
  int64_t row;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const int64_t at = row * args.dim + column;
    const auto x0 = hn::LoadU(d, args.x0 + at);
    const auto factor = hn::LoadU(d, args.factor + at);
    const auto gradient = hn::LoadU(d, args.gradient + at);
    const auto sum = [&](const float* sums) HWY_ATTR {
      return args.adds ? hn::LoadU(d, sums + at) : hn::Zero(d);
    };
    hn::StoreU(
        hn::Add(hn::MulAdd(gradient, factor, gradient), sum(args.x0_gradient)),
        d,
        args.x0_gradient + at);
    const auto factor_gradient =
        hn::MulAdd(gradient, x0, sum(args.factor_gradient));
    hn::StoreU(factor_gradient, d, args.factor_gradient + at);
    if (args.x != nullptr) {
      hn::StoreU(hn::MulAdd(x0, factor, x0), d, args.x + at);
    }
    if (args.bias_gradient != nullptr) {
      float* bias = args.bias_gradient + column;
      hn::StoreU(hn::Add(hn::LoadU(d, bias), factor_gradient), d, bias);
    }
  }
};

void CrossGradient(const CrossGradientArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    ForColumns(args.dim, CrossGradientColumns{args, row});
  }
}

void AddInteractionKernels(DenseKernelTable& table) {
  table.cross_gradient = CrossGradient;
  table.pairwise_dots = PairwiseDots;
  table.pairwise_dots_gradient = PairwiseDotsGradient;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(AddInteractionKernels);

void add_interaction_kernels(DenseKernelTable& table) {
  HWY_DYNAMIC_DISPATCH(AddInteractionKernels)(table);
}

}  // namespace tessera::kernels
#endif
