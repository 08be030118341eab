// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/interaction_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "src/kernels/kernels.h"
#include "src/kernels/prefetch.h"
#include "src/kernels/targets.h"

#include <algorithm>
#include <type_traits>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "src/kernels/columns-inl.h"
#include "src/kernels/prefetch-inl.h"

HWY_INLINE int64_t CountPairs(const PairwiseDotsArgs& args) {
  const int64_t count = args.num_features;
  return count * (args.with_self ? count + 1 : count - 1) / 2;
}

// Transposes four columns of four rows.
HWY_INLINE void TransposeBlock(
    const float* const* rows,
    int64_t column,
    int64_t width,
    float* columns) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 4; ++j) {
      columns[j * width + i] = rows[i][column + j];
    }
  }
#else
  const hn::FixedTag<float, 4> d;
  const auto row0 = hn::LoadU(d, rows[0] + column);
  const auto row1 = hn::LoadU(d, rows[1] + column);
  const auto row2 = hn::LoadU(d, rows[2] + column);
  const auto row3 = hn::LoadU(d, rows[3] + column);
  const auto lower01 = hn::InterleaveLower(d, row0, row1);
  const auto lower23 = hn::InterleaveLower(d, row2, row3);
  const auto upper01 = hn::InterleaveUpper(d, row0, row1);
  const auto upper23 = hn::InterleaveUpper(d, row2, row3);
  hn::StoreU(hn::ConcatLowerLower(d, lower23, lower01), d, columns);
  hn::StoreU(hn::ConcatUpperUpper(d, lower23, lower01), d, columns + width);
  hn::StoreU(hn::ConcatLowerLower(d, upper23, upper01), d, columns + 2 * width);
  hn::StoreU(hn::ConcatUpperUpper(d, upper23, upper01), d, columns + 3 * width);
#endif
}

// Prefetches a row of a later example. The processor does not prefetch so many arrays at
// once by itself.
template <class Float>
HWY_INLINE void PrefetchRow(
    const PairwiseDotsArgs& args,
    const FeatureRows<Float>& rows,
    int64_t example,
    int64_t size) {
  constexpr int64_t kExamplesAhead = 3;
  constexpr int64_t kLine = kLineBytes / int64_t{sizeof(float)};
  const int64_t later = HWY_MIN(example + kExamplesAhead, args.end_example - 1);
  const Float* row = rows.first + later * rows.stride;
  // With PrefetchLines(), the gradient of 27 features of 16 floats took 1.04 to 1.16 times
  // as long.
  for (int64_t i = 0; i < size; i += kLine) {
    PrefetchLine<CacheLevel::kFirst>(row + i);
  }
  PrefetchLine<CacheLevel::kFirst>(row + HWY_MAX(size, 1) - 1);
}

// Finds the rows of one example's features.
HWY_INLINE void FindRows(
    const PairwiseDotsArgs& args,
    int64_t example,
    const float** rows) {
  for (int64_t i = 0; i < args.num_features; ++i) {
    rows[i] = args.features[i].first + example * args.features[i].stride;
    PrefetchRow(args, args.features[i], example, args.dim);
  }
}

// The number of features at the beginning that have the same row in all examples, rounded
// down to the number of rows that are computed together.
HWY_INLINE int64_t CountConstant(const PairwiseDotsArgs& args) {
  int64_t count = 0;
  while (count < args.num_features && args.features[count].stride == 0) {
    ++count;
  }
  return count / 4 * 4;
}

// Transposes the features of one example to columns [dim, width], so that one vector
// holds the same column of several features. The features before `begin`, a multiple of 4,
// are there already.
HWY_INLINE void TransposeFeatures(
    const PairwiseDotsArgs& args,
    const float* const* rows,
    int64_t begin,
    int64_t width,
    float* columns) {
  const int64_t features = args.num_features / 4 * 4;
  const int64_t dim = args.dim / 4 * 4;
  for (int64_t i = begin; i < features; i += 4) {
    for (int64_t column = 0; column < dim; column += 4) {
      TransposeBlock(rows + i, column, width, columns + column * width + i);
    }
    for (int64_t j = i; j < i + 4; ++j) {
      for (int64_t column = dim; column < args.dim; ++column) {
        columns[column * width + j] = rows[j][column];
      }
    }
  }
  for (int64_t i = features; i < args.num_features; ++i) {
    for (int64_t column = 0; column < args.dim; ++column) {
      columns[column * width + i] = rows[i][column];
    }
  }
}

// Calls f(i, std::integral_constant<int, size>()) for groups of four features from `begin`
// on, and for the rest.
template <class F>
HWY_INLINE void ForGroups(int64_t begin, int64_t end, const F& f) {
  int64_t i = begin;
  for (; i + 4 <= end; i += 4) {
    f(i, std::integral_constant<int, 4>());
  }
  switch (end - i) {
    case 3:
      f(i, std::integral_constant<int, 3>());
      break;
    case 2:
      f(i, std::integral_constant<int, 2>());
      break;
    case 1:
      f(i, std::integral_constant<int, 1>());
      break;
    default:
      break;
  }
}

// Computes kRows * 2 vectors of products, products[i + r, j] = x[i + r] . x[j] for j in
// first .. first + 2 * lanes. With one row at a time, each addition would wait for the one
// before.
template <int kRows, class D>
HWY_INLINE void ProductsOfRows(
    D d,
    int64_t dim,
    int64_t width,
    const float* columns,
    int64_t i,
    int64_t first,
    float* products) {
  using V = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  V b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  for (int64_t column = 0; column < dim; ++column) {
    const float* x = columns + column * width;
    const V a = hn::LoadU(d, x + first);
    const V b = hn::LoadU(d, x + first + lanes);
    const V own0 = hn::Set(d, x[i]);
    a0 = hn::MulAdd(own0, a, a0);
    b0 = hn::MulAdd(own0, b, b0);
    if constexpr (kRows >= 2) {
      const V own1 = hn::Set(d, x[i + 1]);
      a1 = hn::MulAdd(own1, a, a1);
      b1 = hn::MulAdd(own1, b, b1);
    }
    if constexpr (kRows >= 3) {
      const V own2 = hn::Set(d, x[i + 2]);
      a2 = hn::MulAdd(own2, a, a2);
      b2 = hn::MulAdd(own2, b, b2);
    }
    if constexpr (kRows >= 4) {
      const V own3 = hn::Set(d, x[i + 3]);
      a3 = hn::MulAdd(own3, a, a3);
      b3 = hn::MulAdd(own3, b, b3);
    }
  }
  float* out = products + i * width + first;
  hn::StoreU(a0, d, out);
  hn::StoreU(b0, d, out + lanes);
  if constexpr (kRows >= 2) {
    hn::StoreU(a1, d, out + width);
    hn::StoreU(b1, d, out + width + lanes);
  }
  if constexpr (kRows >= 3) {
    hn::StoreU(a2, d, out + 2 * width);
    hn::StoreU(b2, d, out + 2 * width + lanes);
  }
  if constexpr (kRows >= 4) {
    hn::StoreU(a3, d, out + 3 * width);
    hn::StoreU(b3, d, out + 3 * width + lanes);
  }
}

// products[i, j] = x[i] . x[j] at least for j <= i, and for i from `begin` on, which is a
// multiple of 4.
HWY_INLINE void LowerProducts(
    const PairwiseDotsArgs& args,
    int64_t begin,
    int64_t width,
    const float* columns,
    float* products) {
  ForGroups(begin, args.num_features, [&](int64_t i, auto rows) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value;
    const hn::ScalableTag<float> d;
    const int64_t block = 2 * static_cast<int64_t>(hn::Lanes(d));
    for (int64_t first = 0; first < i + kRows; first += block) {
      ProductsOfRows<kRows>(d, args.dim, width, columns, i, first, products);
    }
  });
}

// Copies the products of all pairs from row `begin` on, row by row. The last vector of a
// row also writes past its end. The next row overwrites these numbers.
HWY_INLINE void PackPairs(
    const PairwiseDotsArgs& args,
    int64_t begin,
    int64_t width,
    const float* products,
    float* dots) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  dots += begin * (args.with_self ? begin + 1 : begin - 1) / 2;
  for (int64_t i = begin; i < args.num_features; ++i) {
    const int64_t count = i + (args.with_self ? 1 : 0);
    for (int64_t j = 0; j < count; j += lanes) {
      hn::StoreU(hn::LoadU(d, products + i * width + j), d, dots + j);
    }
    dots += count;
  }
}

void PairwiseDots(const PairwiseDotsArgs& args) {
  const int64_t lanes =
      static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const int64_t block = 2 * lanes;
  const int64_t width = (args.num_features + block - 1) / block * block;
  const int64_t pairs = CountPairs(args);
  std::vector<float> columns(args.dim * width);
  std::vector<float> products(args.num_features * width);
  std::vector<float> dots(pairs + lanes);
  std::vector<const float*> rows(args.num_features);
  const int64_t constant = CountConstant(args);
  for (int64_t b = args.begin_example; b < args.end_example; ++b) {
    // The buffers keep what the first example has computed of constant features.
    const int64_t begin = b == args.begin_example ? 0 : constant;
    FindRows(args, b, rows.data());
    TransposeFeatures(args, rows.data(), begin, width, columns.data());
    LowerProducts(args, begin, width, columns.data(), products.data());
    PackPairs(args, begin, width, products.data(), dots.data());
    std::copy_n(dots.data(), pairs, args.dots + b * pairs);
  }
}

// The gradient of the pairs of one example as a symmetric matrix. Only its lower triangle
// is in memory.
class PairGradients {
 public:
  PairGradients(const PairwiseDotsArgs& args, int64_t example)
      : first_(args.dots_gradient.first + example * args.dots_gradient.stride),
        with_self_(args.with_self) {}

  // Row i of the lower triangle, entries j < i, and j == i if with_self.
  const float* Row(int64_t i) const {
    return first_ + i * (with_self_ ? i + 1 : i - 1) / 2;
  }
  int64_t Length(int64_t i) const {
    return with_self_ ? i + 1 : i;
  }
  float At(int64_t i, int64_t j) const {
    if (i == j) {
      // The gradient of x . x is 2 x.
      return with_self_ ? 2.0F * Row(i)[i] : 0.0F;
    }
    return i > j ? Row(i)[j] : Row(j)[i];
  }

 private:
  const float* first_;
  bool with_self_;
};

// Adds the products of x and one factor for each of kCount sums.
template <int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void AddToSums(
    D d,
    V x,
    float factor0,
    float factor1,
    float factor2,
    float factor3,
    V& sum0,
    V& sum1,
    V& sum2,
    V& sum3) {
  sum0 = hn::MulAdd(hn::Set(d, factor0), x, sum0);
  if constexpr (kCount >= 2) {
    sum1 = hn::MulAdd(hn::Set(d, factor1), x, sum1);
  }
  if constexpr (kCount >= 3) {
    sum2 = hn::MulAdd(hn::Set(d, factor2), x, sum2);
  }
  if constexpr (kCount >= 4) {
    sum3 = hn::MulAdd(hn::Set(d, factor3), x, sum3);
  }
}

// Computes some columns of the gradients of all features.
struct GradientColumns {
  const PairwiseDotsArgs& args;
  int64_t example;
  const float* const* rows;  // [num_features]
  PairGradients pairs;

  template <class D>
  HWY_INLINE void Store(D d, int64_t i, int64_t column, hn::Vec<D> sum) const {
    const FeatureRows<float>& gradients = args.gradients[i];
    hn::StoreU(sum, d, gradients.first + example * gradients.stride + column);
  }

  // Computes columns [column, column + kVectors * lanes) of the gradients of kCount features
  // from i on. The gradients of all features are the product of the matrix `pairs` and the
  // rows. Each sum adds the features in their order.
  template <int kCount, int kVectors, class D>
  HWY_INLINE void Features(D d, int64_t i, int64_t column) const {
    using V = hn::Vec<D>;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
    V b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    // Without inlining, the sums would be in memory.
    const auto add = [&](int64_t j, float f0, float f1, float f2, float f3)
        HWY_ATTR __attribute__((always_inline)) {
      const V x = hn::LoadU(d, rows[j] + column);
      AddToSums<kCount>(d, x, f0, f1, f2, f3, a0, a1, a2, a3);
      if constexpr (kVectors == 2) {
        const V y = hn::LoadU(d, rows[j] + column + lanes);
        AddToSums<kCount>(d, y, f0, f1, f2, f3, b0, b1, b2, b3);
      }
    };
    // A group of fewer than four features repeats the last one, whose sums are not used.
    const int64_t i1 = i + HWY_MIN(1, kCount - 1);
    const int64_t i2 = i + HWY_MIN(2, kCount - 1);
    const int64_t i3 = i + kCount - 1;
    const float* row0 = pairs.Row(i);
    const float* row1 = pairs.Row(i1);
    const float* row2 = pairs.Row(i2);
    const float* row3 = pairs.Row(i3);
    for (int64_t j = 0; j < i; ++j) {
      add(j, row0[j], row1[j], row2[j], row3[j]);
    }
    for (int64_t j = i; j < i + kCount; ++j) {
      add(j, pairs.At(i, j), pairs.At(i1, j), pairs.At(i2, j), pairs.At(i3, j));
    }
    if constexpr (kCount == 4) {  // the other groups are the last ones
      const float* row = pairs.Row(i + 4) + i;
      for (int64_t j = i + 4; j < args.num_features; ++j) {
        add(j, row[0], row[1], row[2], row[3]);
        row += pairs.Length(j);
      }
    }
    const auto store = [&](int64_t feature, V a, V b) HWY_ATTR {
      Store(d, feature, column, a);
      if constexpr (kVectors == 2) {
        Store(d, feature, column + lanes, b);
      }
    };
    store(i, a0, b0);
    if constexpr (kCount >= 2) {
      store(i + 1, a1, b1);
    }
    if constexpr (kCount >= 3) {
      store(i + 2, a2, b2);
    }
    if constexpr (kCount >= 4) {
      store(i + 3, a3, b3);
    }
  }

  template <int kVectors, class D>
  HWY_INLINE void Vectors(D d, int64_t column) const {
    ForGroups(0, args.num_features, [&](int64_t i, auto count) HWY_ATTR {
      Features<decltype(count)::value, kVectors>(d, i, column);
    });
  }

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    Vectors<1>(d, column);
  }

  // Two vectors of columns share the factors of the matrix.
  HWY_INLINE void All() const {
    const hn::ScalableTag<float> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t column = 0;
    for (; column + 2 * lanes <= args.dim; column += 2 * lanes) {
      Vectors<2>(d, column);
    }
    if (column + lanes <= args.dim) {
      Vectors<1>(d, column);
      column += lanes;
    }
    ForLastColumns(args.dim, column, *this);
  }
};

void PairwiseDotsGradient(const PairwiseDotsArgs& args) {
  std::vector<const float*> rows(args.num_features);
  for (int64_t b = args.begin_example; b < args.end_example; ++b) {
    FindRows(args, b, rows.data());
    PrefetchRow(args, args.dots_gradient, b, CountPairs(args));
    for (int64_t i = 0; i < args.num_features; ++i) {
      PrefetchRow(args, args.gradients[i], b, args.dim);
    }
    GradientColumns{args, b, rows.data(), PairGradients(args, b)}.All();
  }
}

struct CrossGradientColumns {
  const CrossGradientArgs& args;
  int64_t row;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const int64_t at = row * args.dim + column;
    const auto gradient = hn::LoadU(d, args.gradient + at);
    const auto factor = hn::LoadU(d, args.factor + at);
    const auto sum =
        args.adds ? hn::LoadU(d, args.x0_gradient + at) : hn::Zero(d);
    hn::StoreU(hn::MulAdd(gradient, factor, sum), d, args.x0_gradient + at);
    const auto product_gradient = hn::Mul(gradient, hn::LoadU(d, args.x0 + at));
    hn::StoreU(product_gradient, d, args.product_gradient + at);
    if (args.bias_gradient != nullptr) {
      float* bias = args.bias_gradient + column;
      hn::StoreU(hn::Add(hn::LoadU(d, bias), product_gradient), d, bias);
    }
  }
};

void CrossGradient(const CrossGradientArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    ForColumns(args.dim, CrossGradientColumns{args, row});
  }
}

void AddInteractionKernels(KernelTable& table) {
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

void add_interaction_kernels(KernelTable& table) {
  HWY_DYNAMIC_DISPATCH(AddInteractionKernels)(table);
}

}  // namespace tessera::kernels
#endif
