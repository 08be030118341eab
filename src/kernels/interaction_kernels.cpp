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

// Finds the rows of one example's features, and prefetches those of a later one. The
// processor does not prefetch so many arrays at once by itself.
HWY_INLINE void FindRows(
    const PairwiseDotsArgs& args,
    int64_t example,
    const float** rows) {
  constexpr int64_t kExamplesAhead = 3;
  const int64_t row_bytes = args.dim * static_cast<int64_t>(sizeof(float));
  for (int64_t i = 0; i < args.num_features; ++i) {
    rows[i] = args.features[i].first + example * args.features[i].stride;
    if (example + kExamplesAhead < args.end_example) {
      PrefetchLines(
          rows[i] + kExamplesAhead * args.features[i].stride, row_bytes);
    }
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
    if constexpr (kRows == 4) {
      const V own1 = hn::Set(d, x[i + 1]);
      const V own2 = hn::Set(d, x[i + 2]);
      const V own3 = hn::Set(d, x[i + 3]);
      a1 = hn::MulAdd(own1, a, a1);
      b1 = hn::MulAdd(own1, b, b1);
      a2 = hn::MulAdd(own2, a, a2);
      b2 = hn::MulAdd(own2, b, b2);
      a3 = hn::MulAdd(own3, a, a3);
      b3 = hn::MulAdd(own3, b, b3);
    }
  }
  float* out = products + i * width + first;
  hn::StoreU(a0, d, out);
  hn::StoreU(b0, d, out + lanes);
  if constexpr (kRows == 4) {
    hn::StoreU(a1, d, out + width);
    hn::StoreU(b1, d, out + width + lanes);
    hn::StoreU(a2, d, out + 2 * width);
    hn::StoreU(b2, d, out + 2 * width + lanes);
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
  const hn::ScalableTag<float> d;
  const int64_t block = 2 * static_cast<int64_t>(hn::Lanes(d));
  int64_t i = begin;
  for (; i + 4 <= args.num_features; i += 4) {
    for (int64_t first = 0; first < i + 4; first += block) {
      ProductsOfRows<4>(d, args.dim, width, columns, i, first, products);
    }
  }
  for (; i < args.num_features; ++i) {
    for (int64_t first = 0; first <= i; first += block) {
      ProductsOfRows<1>(d, args.dim, width, columns, i, first, products);
    }
  }
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

// Adds the products of x and four factors to four sums.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void AddToFour(
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
  sum1 = hn::MulAdd(hn::Set(d, factor1), x, sum1);
  sum2 = hn::MulAdd(hn::Set(d, factor2), x, sum2);
  sum3 = hn::MulAdd(hn::Set(d, factor3), x, sum3);
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

  // Computes columns [column, column + kVectors * lanes) of the gradients of the features i
  // to i + 3. The gradients of all features are the product of the matrix `pairs` and the
  // rows. Each sum adds the features in their order.
  template <int kVectors, class D>
  HWY_INLINE void FourFeatures(D d, int64_t i, int64_t column) const {
    using V = hn::Vec<D>;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
    V b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    const auto add = [&](int64_t j, float f0, float f1, float f2, float f3)
                         HWY_ATTR {
                           const V x = hn::LoadU(d, rows[j] + column);
                           AddToFour(d, x, f0, f1, f2, f3, a0, a1, a2, a3);
                           if constexpr (kVectors == 2) {
                             const V y = hn::LoadU(d, rows[j] + column + lanes);
                             AddToFour(d, y, f0, f1, f2, f3, b0, b1, b2, b3);
                           }
                         };
    const float* row0 = pairs.Row(i);
    const float* row1 = pairs.Row(i + 1);
    const float* row2 = pairs.Row(i + 2);
    const float* row3 = pairs.Row(i + 3);
    for (int64_t j = 0; j < i; ++j) {
      add(j, row0[j], row1[j], row2[j], row3[j]);
    }
    for (int64_t j = i; j < i + 4; ++j) {
      add(j,
          pairs.At(i, j),
          pairs.At(i + 1, j),
          pairs.At(i + 2, j),
          pairs.At(i + 3, j));
    }
    const float* row = pairs.Row(i + 4) + i;
    for (int64_t j = i + 4; j < args.num_features; ++j) {
      add(j, row[0], row[1], row[2], row[3]);
      row += pairs.Length(j);
    }
    Store(d, i, column, a0);
    Store(d, i + 1, column, a1);
    Store(d, i + 2, column, a2);
    Store(d, i + 3, column, a3);
    if constexpr (kVectors == 2) {
      Store(d, i, column + lanes, b0);
      Store(d, i + 1, column + lanes, b1);
      Store(d, i + 2, column + lanes, b2);
      Store(d, i + 3, column + lanes, b3);
    }
  }

  template <class D>
  HWY_INLINE void OneFeature(D d, int64_t i, int64_t column) const {
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < args.num_features; ++j) {
      sum = hn::MulAdd(
          hn::Set(d, pairs.At(i, j)), hn::LoadU(d, rows[j] + column), sum);
    }
    Store(d, i, column, sum);
  }

  template <int kVectors, class D>
  HWY_INLINE void Vectors(D d, int64_t column) const {
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = 0;
    for (; i + 4 <= args.num_features; i += 4) {
      FourFeatures<kVectors>(d, i, column);
    }
    for (; i < args.num_features; ++i) {
      OneFeature(d, i, column);
      if constexpr (kVectors == 2) {
        OneFeature(d, i, column + lanes);
      }
    }
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

// Prefetches where the next example's gradients are written.
HWY_INLINE void PrefetchGradients(
    const PairwiseDotsArgs& args,
    int64_t example) {
  if (example + 1 == args.end_example) {
    return;
  }
  const int64_t row_bytes = args.dim * static_cast<int64_t>(sizeof(float));
  for (int64_t i = 0; i < args.num_features; ++i) {
    const FeatureRows<float>& gradients = args.gradients[i];
    PrefetchLines(
        gradients.first + (example + 1) * gradients.stride, row_bytes);
  }
}

void PairwiseDotsGradient(const PairwiseDotsArgs& args) {
  std::vector<const float*> rows(args.num_features);
  for (int64_t b = args.begin_example; b < args.end_example; ++b) {
    FindRows(args, b, rows.data());
    PrefetchGradients(args, b);
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
    const auto sum = hn::LoadU(d, args.x0_gradient + at);
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
