// SPDX-License-Identifier: Apache-2.0
#include "src/weight_gradient.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

namespace tessera {

at::Tensor gather_rows(const IdBags& bags, const at::Tensor& table) {
  at::Tensor rows = at::zeros({bags.nnz(), bags.dim}, at::kFloat);
  float* to = rows.mutable_data_ptr<float>();
  const float* from = table.const_data_ptr<float>();
  for (int64_t i = 0; i < bags.nnz(); ++i) {
    if (bags.ids[i] != kZeroRow) {
      std::copy_n(from + bags.ids[i] * bags.dim, bags.dim, to + i * bags.dim);
    }
  }
  return rows;
}

at::Tensor weight_gradient(
    const IdBags& bags,
    const at::Tensor& rows,
    const at::Tensor& gradient,
    int64_t count) {
  at::Tensor result = at::zeros({count}, at::kFloat);
  float* out = result.mutable_data_ptr<float>();
  const at::Tensor contiguous = gradient.contiguous();
  const float* gradients = contiguous.const_data_ptr<float>();
  const float* x = rows.const_data_ptr<float>();
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    const float* g = gradients + bag * bags.dim;
    const double s = bags.scales.empty() ? 1.0 : bags.scales[bag];
    double weighted = 0.0;
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      const double dot =
          std::inner_product(g, g + bags.dim, x + i * bags.dim, 0.0);
      out[bags.position(i)] = static_cast<float>(s * dot);
      weighted += bags.weights[i] * dot;
    }
    if (bags.combiner == Combiner::kSum) {
      continue;
    }
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      const double share = bags.combiner == Combiner::kMean
          ? s * s
          : bags.weights[i] * s * s * s;
      out[bags.position(i)] -= static_cast<float>(share * weighted);
    }
  }
  return result;
}

}  // namespace tessera
