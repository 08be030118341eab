// SPDX-License-Identifier: Apache-2.0
// Stock LibTorch operators only: an independent check of the engine.
#include "src/strategies/embedding_strategy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace tessera {

namespace {

// Positions and rows of the ids that do not look up zeros.
struct LiveIds {
  at::Tensor positions;  // [live]
  at::Tensor rows;  // [live]
};

LiveIds live_ids(const IdBags& bags) {
  LiveIds live{
      at::empty({bags.nnz() - bags.zero_rows}, at::kLong),
      at::empty({bags.nnz() - bags.zero_rows}, at::kLong)};
  int64_t* positions = live.positions.mutable_data_ptr<int64_t>();
  int64_t* rows = live.rows.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < bags.nnz(); ++i) {
    if (bags.ids[i] != kZeroRow) {
      *positions++ = i;
      *rows++ = bags.ids[i];
    }
  }
  return live;
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

at::Tensor kept_weights(const IdBags& bags, const at::Tensor& weights) {
  if (bags.kept.empty() && bags.nnz() == weights.numel()) {
    return weights;
  }
  at::Tensor kept = at::empty({bags.nnz()}, at::kLong);
  std::copy(
      bags.kept.begin(), bags.kept.end(), kept.mutable_data_ptr<int64_t>());
  return weights.index_select(0, kept);
}

class HostStrategy : public EmbeddingStrategy {
 public:
  HostStrategy(std::shared_ptr<EmbeddingState> state, Strategy::Host options)
      : state_(std::move(state)), options_(options) {
    for (const TableState& table : state_->tables) {
      TORCH_CHECK_VALUE(
          table.config->dtype == at::kFloat,
          "[table '",
          table.name,
          "'] dtype ",
          to_string(table.config->dtype),
          " needs Strategy::engine(): on the host an optimizer of LibTorch "
          "would round its steps away. Use kFloat.");
      table.parameters.requires_grad_(true);
    }
  }

  std::vector<std::pair<std::string, at::Tensor>> parameters() override {
    std::vector<std::pair<std::string, at::Tensor>> parameters;
    for (size_t i = 0; i < state_->tables.size(); ++i) {
      parameters.emplace_back(
          "table_" + std::to_string(i), state_->tables[i].parameters);
    }
    return parameters;
  }

  std::vector<at::Tensor> forward(Batch batch) override {
    std::vector<at::Tensor> activations;
    for (size_t i = 0; i < batch.bags.size(); ++i) {
      state_->out_of_range_count += batch.bags[i].zero_rows;
      const size_t table = state_->features[i].table;
      activations.push_back(look_up(
          state_->tables[table].parameters, batch.bags[i], batch.weights[i]));
    }
    return activations;
  }

 private:
  at::Tensor look_up(
      const at::Tensor& table,
      const IdBags& bags,
      const at::Tensor& weights) const {
    const LiveIds live = live_ids(bags);
    at::Tensor rows = at::embedding(
        table,
        live.rows,
        /*padding_idx=*/-1,
        /*scale_grad_by_freq=*/false,
        options_.sparse_gradients);
    if (bags.zero_rows > 0) {
      rows = at::zeros({bags.nnz(), bags.dim}, at::kFloat)
                 .index_copy(0, live.positions, rows);
    }
    if (!bags.offsets.empty()) {
      rows = combine(rows, bags, weights);
    }
    return rows.view(bags.activation_shape());
  }

  static at::Tensor combine(
      const at::Tensor& rows,
      const IdBags& bags,
      const at::Tensor& weights) {
    const at::Tensor segments = bag_ids(bags);
    at::Tensor weight = at::ones({bags.nnz()}, at::kFloat);
    if (weights.defined()) {
      weight = kept_weights(bags, weights);
    }
    at::Tensor sum = at::zeros({bags.bags, bags.dim}, at::kFloat)
                         .index_add(0, segments, rows * weight.unsqueeze(1));
    if (bags.combiner == Combiner::kSum) {
      return sum;
    }
    const bool is_mean = bags.combiner == Combiner::kMean;
    const at::Tensor total =
        at::zeros({bags.bags}, at::kFloat)
            .index_add(0, segments, is_mean ? weight : weight * weight);
    // Zero denominators are replaced before the division: 0 / 0 would give a
    // NaN gradient even where the result is not used.
    const at::Tensor is_zero = total == 0;
    at::Tensor denominator = at::where(is_zero, at::ones_like(total), total);
    denominator = is_mean ? denominator : denominator.sqrt();
    return at::where(
        is_zero.unsqueeze(1),
        at::zeros({1}, at::kFloat),
        sum / denominator.unsqueeze(1));
  }

  std::shared_ptr<EmbeddingState> state_;
  Strategy::Host options_;
};

}  // namespace

std::unique_ptr<EmbeddingStrategy> make_host_strategy(
    std::shared_ptr<EmbeddingState> state,
    Strategy::Host options) {
  return std::make_unique<HostStrategy>(std::move(state), options);
}

}  // namespace tessera
