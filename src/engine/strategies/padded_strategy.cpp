// SPDX-License-Identifier: Apache-2.0
#include "src/engine/operator_lookup.h"
#include "src/engine/strategies/parameter_strategy.h"
#include "src/tables/combiner_operators.h"
#include "src/tables/combiner_rule.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace tessera {

namespace {

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

class PaddedStrategy : public ParameterStrategy {
 public:
  explicit PaddedStrategy(std::shared_ptr<EmbeddingState> state)
      : ParameterStrategy(std::move(state), /*sparse_gradients=*/false) {}

 private:
  at::Tensor lookup(
      const LookupTable& table,
      const IdBags& bags,
      const at::Tensor& weights) const override {
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
};

}  // namespace

std::unique_ptr<EmbeddingStrategy> make_padded_strategy(
    std::shared_ptr<EmbeddingState> state) {
  return std::make_unique<PaddedStrategy>(std::move(state));
}

}  // namespace tessera
