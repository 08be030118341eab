// SPDX-License-Identifier: Apache-2.0
#include "src/engine/weight_gradient.h"

#include "src/common/active_kernels.h"
#include "src/tables/combiner_rule.h"
#include "src/tables/table_memory.h"

#include <ATen/ops/zeros.h>

#include <numeric>

namespace tessera {

at::Tensor gather_rows(
    const IdBags& bags,
    const IdBags& found,
    const LookupTable& table) {
  at::Tensor rows = at::zeros({bags.nnz(), bags.dim}, at::kFloat);
  auto* out = rows.mutable_data_ptr<float>();
  const kernels::KernelTable& kernels = active_kernels();
  int64_t next = 0;  // position in `found`
  for (int64_t begin = 0; begin < bags.nnz();) {
    int64_t end = begin;
    while (end < bags.nnz() && bags.ids[end] != kZeroRow) {
      ++end;
    }
    kernels.combine(
        {.table = stored_rows(table.rows),
         .ids = found.ids.data() + next,
         .nnz = end - begin,
         .buckets = table.buckets,
         .out = out + begin * bags.dim,
         .end_bag = end - begin});
    next += end - begin;
    begin = end + 1;  // skips the row of zeros
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
  const at::Tensor contiguous = gradient.resolve_neg().contiguous();
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
    if (!is_divided(bags.combiner)) {
      continue;
    }
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      const double factor =
          combiner_weight_factor(bags.combiner, bags.weights[i], s);
      out[bags.position(i)] -= static_cast<float>(factor * weighted);
    }
  }
  return result;
}

}  // namespace tessera
