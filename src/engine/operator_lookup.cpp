// SPDX-License-Identifier: Apache-2.0
// These lookups use only stock LibTorch operators. Tests compare the engine with them.
#include "src/engine/operator_lookup.h"

#include "src/tables/combiner_operators.h"
#include "src/tables/combiner_rule.h"
#include "src/tables/table_state.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace tessera {

namespace {

// Positions and rows of the ids that do not look up zeros.
struct ValidIds {
  at::Tensor positions;  // [valid]
  at::Tensor rows;  // [valid]
};

ValidIds valid_ids(const IdBags& bags) {
  ValidIds valid{
      at::empty({bags.nnz() - bags.zero_ids()}, at::kLong),
      at::empty({bags.nnz() - bags.zero_ids()}, at::kLong)};
  int64_t* positions = valid.positions.mutable_data_ptr<int64_t>();
  int64_t* rows = valid.rows.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < bags.nnz(); ++i) {
    if (bags.ids[i] != kZeroRow) {
      *positions++ = i;
      *rows++ = bags.ids[i];
    }
  }
  return valid;
}

// [nnz] int64: the bag of each id.
at::Tensor bag_ids(const IdBags& bags) {
  at::Tensor segments = at::empty({bags.nnz()}, at::kLong);
  int64_t* data = segments.mutable_data_ptr<int64_t>();
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    std::fill(data + bags.begin(bag), data + bags.end(bag), bag);
  }
  return segments;
}

// Bags padded to the longest one.
struct Grid {
  int64_t width = 0;
  at::Tensor cells;  // [nnz] int64, the cell of each id in the flat grid
  at::Tensor rows;  // [bags, width] int64, 0 where nothing is looked up
  at::Tensor is_valid;  // [bags, width] bool
};

Grid make_grid(const IdBags& bags) {
  Grid grid;
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    grid.width = std::max(grid.width, bags.end(bag) - bags.begin(bag));
  }
  grid.cells = at::empty({bags.nnz()}, at::kLong);
  grid.rows = at::zeros({bags.bags, grid.width}, at::kLong);
  grid.is_valid = at::zeros({bags.bags, grid.width}, at::kBool);
  int64_t* cells = grid.cells.mutable_data_ptr<int64_t>();
  int64_t* rows = grid.rows.mutable_data_ptr<int64_t>();
  bool* is_valid = grid.is_valid.mutable_data_ptr<bool>();
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      cells[i] = bag * grid.width + i - bags.begin(bag);
      is_valid[cells[i]] = bags.ids[i] != kZeroRow;
      rows[cells[i]] = is_valid[cells[i]] ? bags.ids[i] : 0;
    }
  }
  return grid;
}

// Rounds the rows. The gradient passes as if there were no rounding.
at::Tensor round_to_buckets(
    const at::Tensor& rows,
    const kernels::Buckets& buckets) {
  if (buckets.step == 0.0F) {
    return rows;
  }
  const at::Tensor values = rows.detach();
  const at::Tensor bucket =
      ((at::clamp(values, buckets.lower, buckets.upper) - buckets.lower) /
           buckets.step +
       0.5F)
          .floor();
  const at::Tensor rounded = bucket * buckets.step + buckets.lower;
  // Adding rows - values, which is 0, gives the result the gradient of the rows. For
  // values that are not finite, the difference is NaN, so these get no gradient.
  return rounded +
      at::where(values.isfinite(), rows - values, at::zeros({1}, at::kFloat));
}

// The weight of each id, [nnz], and ones if `weights` is undefined. Differentiable.
at::Tensor weight_per_id(const IdBags& bags, const at::Tensor& weights) {
  if (!weights.defined()) {
    return at::ones({bags.nnz()}, at::kFloat);
  }
  if (bags.kept.empty() && bags.nnz() == weights.numel()) {
    return weights;
  }
  at::Tensor kept = at::empty({bags.nnz()}, at::kLong);
  std::copy(
      bags.kept.begin(), bags.kept.end(), kept.mutable_data_ptr<int64_t>());
  return weights.index_select(0, kept);
}

}  // namespace

at::Tensor divide_by_total(
    const at::Tensor& sum,
    const at::Tensor& total,
    Combiner combiner) {
  // Zero denominators are replaced before the division: 0 / 0 would give a NaN
  // gradient even where the result is not used.
  const at::Tensor is_zero = total == 0;
  const at::Tensor denominator =
      combiner_denominator(combiner, total.masked_fill(is_zero, 1));
  return (sum / denominator.unsqueeze(1)).masked_fill(is_zero.unsqueeze(1), 0);
}

at::Tensor lookup_by_operators(
    const LookupTable& table,
    const IdBags& bags,
    const at::Tensor& weights,
    bool sparse_gradients) {
  const ValidIds valid = valid_ids(bags);
  const at::Tensor found = at::embedding(
      table.rows,
      valid.rows,
      /*padding_idx=*/-1,
      /*scale_grad_by_freq=*/false,
      sparse_gradients);
  at::Tensor rows = round_to_buckets(float_rows(found), table.buckets);
  if (bags.zero_ids() > 0) {
    rows = at::zeros({bags.nnz(), bags.dim}, at::kFloat)
               .index_copy(0, valid.positions, rows);
  }
  if (bags.offsets.empty()) {
    return rows;
  }
  const at::Tensor segments = bag_ids(bags);
  const at::Tensor weight = weight_per_id(bags, weights);
  const at::Tensor terms = rows * weight.unsqueeze(1);
  const at::Tensor sum = at::zeros({bags.bags, bags.dim}, at::kFloat)
                             .index_add(0, segments, terms);
  if (!is_divided(bags.combiner)) {
    return sum;
  }
  const at::Tensor term = combiner_term(bags.combiner, weight);
  const at::Tensor total =
      at::zeros({bags.bags}, at::kFloat).index_add(0, segments, term);
  return divide_by_total(sum, total, bags.combiner);
}

at::Tensor lookup_in_grid(
    const LookupTable& table,
    const IdBags& bags,
    const at::Tensor& weights) {
  const Grid grid = make_grid(bags);
  const at::Tensor weight =
      at::zeros({bags.bags * grid.width}, at::kFloat)
          .index_copy(0, grid.cells, weight_per_id(bags, weights))
          .view({bags.bags, grid.width});
  const at::Tensor rows =
      round_to_buckets(at::embedding(table.rows, grid.rows), table.buckets);
  // Cells that are not valid hold row 0. They are masked before the multiplication, so
  // that a NaN or infinity in row 0 has no effect.
  const at::Tensor valid_rows =
      at::where(grid.is_valid.unsqueeze(2), rows, at::zeros({1}, at::kFloat));
  const at::Tensor terms = valid_rows * weight.unsqueeze(2);
  const at::Tensor sum = terms.sum(1);
  if (!is_divided(bags.combiner)) {
    return sum;
  }
  const at::Tensor total = combiner_term(bags.combiner, weight).sum(1);
  return divide_by_total(sum, total, bags.combiner);
}

}  // namespace tessera
