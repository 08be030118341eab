// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/interaction_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#include "src/kernels/kernels.h"
#include "src/kernels/targets.h"

#include <algorithm>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "src/kernels/columns-inl.h"

HWY_INLINE int64_t CountPairs(const PairwiseDotsArgs& args) {
  const int64_t count = args.num_features;
  return count * (args.with_self ? count + 1 : count - 1) / 2;
}

// Transposes the features of one example to columns [dim, width], so that one vector
// holds the same column of several features.
void TransposeFeatures(
    const PairwiseDotsArgs& args,
    int64_t example,
    int64_t width,
    float* columns) {
  for (int64_t i = 0; i < args.num_features; ++i) {
    const float* row =
        args.features[i].first + example * args.features[i].stride;
    for (int64_t column = 0; column < args.dim; ++column) {
      columns[column * width + i] = row[column];
    }
  }
}

// dots[j] = x[i] . x[j] for j in 0 .. count, rounded up to whole vectors.
HWY_INLINE void DotsOfFeature(
    int64_t dim,
    int64_t width,
    const float* columns,
    int64_t i,
    int64_t count,
    float* dots) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + lanes < count; j += 2 * lanes) {
    auto first = hn::Zero(d);
    auto second = hn::Zero(d);
    for (int64_t column = 0; column < dim; ++column) {
      const float* x = columns + column * width;
      const auto own = hn::Set(d, x[i]);
      first = hn::MulAdd(own, hn::LoadU(d, x + j), first);
      second = hn::MulAdd(own, hn::LoadU(d, x + j + lanes), second);
    }
    hn::StoreU(first, d, dots + j);
    hn::StoreU(second, d, dots + j + lanes);
  }
  if (j < count) {
    auto last = hn::Zero(d);
    for (int64_t column = 0; column < dim; ++column) {
      const float* x = columns + column * width;
      last = hn::MulAdd(hn::Set(d, x[i]), hn::LoadU(d, x + j), last);
    }
    hn::StoreU(last, d, dots + j);
  }
}

void PairwiseDots(const PairwiseDotsArgs& args) {
  const int64_t lanes =
      static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const int64_t width = (args.num_features + lanes - 1) / lanes * lanes;
  const int64_t pairs = CountPairs(args);
  std::vector<float> columns(args.dim * width);
  // The last vector of a feature also writes behind the feature's pairs. The next feature
  // overwrites these numbers.
  std::vector<float> dots(pairs + lanes);
  for (int64_t b = args.begin_example; b < args.end_example; ++b) {
    TransposeFeatures(args, b, width, columns.data());
    int64_t pair = 0;
    for (int64_t i = 0; i < args.num_features; ++i) {
      const int64_t count = i + (args.with_self ? 1 : 0);
      DotsOfFeature(
          args.dim, width, columns.data(), i, count, dots.data() + pair);
      pair += count;
    }
    std::copy_n(dots.data(), pairs, args.dots + b * pairs);
  }
}

// Writes the gradient as a symmetric matrix [num_features, num_features].
void SpreadGradient(
    const PairwiseDotsArgs& args,
    int64_t example,
    float* matrix) {
  const int64_t count = args.num_features;
  const float* gradient =
      args.dots_gradient.first + example * args.dots_gradient.stride;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < i; ++j, ++gradient) {
      matrix[i * count + j] = *gradient;
      matrix[j * count + i] = *gradient;
    }
    // The gradient of x . x is 2 x.
    matrix[i * count + i] = args.with_self ? 2.0F * *gradient++ : 0.0F;
  }
}

// Computes one vector of columns of the features' gradients, matrix . x, four features at
// a time.
struct GradientColumns {
  const PairwiseDotsArgs& args;
  int64_t example;
  const float* x;  // [num_features, dim]
  const float* matrix;  // [num_features, num_features]

  template <class D>
  HWY_INLINE void Store(D d, int64_t i, int64_t column, hn::Vec<D> sum) const {
    const FeatureRows<float>& out = args.gradients[i];
    hn::StoreU(sum, d, out.first + example * out.stride + column);
  }

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    using V = hn::Vec<D>;
    const int64_t count = args.num_features;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
      const float* row = matrix + i * count;
      V sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
      for (int64_t j = 0; j < count; ++j) {
        const V other = hn::LoadU(d, x + j * args.dim + column);
        sum0 = hn::MulAdd(hn::Set(d, row[j]), other, sum0);
        sum1 = hn::MulAdd(hn::Set(d, row[count + j]), other, sum1);
        sum2 = hn::MulAdd(hn::Set(d, row[2 * count + j]), other, sum2);
        sum3 = hn::MulAdd(hn::Set(d, row[3 * count + j]), other, sum3);
      }
      Store(d, i, column, sum0);
      Store(d, i + 1, column, sum1);
      Store(d, i + 2, column, sum2);
      Store(d, i + 3, column, sum3);
    }
    for (; i < count; ++i) {
      V sum = hn::Zero(d);
      for (int64_t j = 0; j < count; ++j) {
        sum = hn::MulAdd(
            hn::Set(d, matrix[i * count + j]),
            hn::LoadU(d, x + j * args.dim + column),
            sum);
      }
      Store(d, i, column, sum);
    }
  }
};

void PairwiseDotsGradient(const PairwiseDotsArgs& args) {
  const int64_t count = args.num_features;
  std::vector<float> x(count * args.dim);
  std::vector<float> matrix(count * count);
  for (int64_t b = args.begin_example; b < args.end_example; ++b) {
    for (int64_t i = 0; i < count; ++i) {
      const FeatureRows<const float>& rows = args.features[i];
      std::copy_n(
          rows.first + b * rows.stride, args.dim, x.data() + i * args.dim);
    }
    SpreadGradient(args, b, matrix.data());
    ForColumns(args.dim, GradientColumns{args, b, x.data(), matrix.data()});
  }
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V ProductAndBias(D d, const CrossArgs& args, int64_t r, int64_t c) {
  const V product = hn::LoadU(d, args.product + r * args.dim + c);
  return args.bias == nullptr ? product
                              : hn::Add(product, hn::LoadU(d, args.bias + c));
}

struct CrossColumns {
  const CrossArgs& args;
  int64_t row;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const int64_t at = row * args.dim + column;
    const auto factor = ProductAndBias(d, args, row, column);
    const auto x = hn::LoadU(d, args.x + at);
    hn::StoreU(
        hn::MulAdd(hn::LoadU(d, args.x0 + at), factor, x), d, args.out + at);
  }
};

struct CrossGradientColumns {
  const CrossArgs& args;
  int64_t row;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const int64_t at = row * args.dim + column;
    const auto gradient = hn::LoadU(d, args.gradient + at);
    const auto factor = ProductAndBias(d, args, row, column);
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

void Cross(const CrossArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    ForColumns(args.dim, CrossColumns{args, row});
  }
}

void CrossGradient(const CrossArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    ForColumns(args.dim, CrossGradientColumns{args, row});
  }
}

void AddInteractionKernels(KernelTable& table) {
  table.cross = Cross;
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
