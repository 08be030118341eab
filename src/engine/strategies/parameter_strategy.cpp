// SPDX-License-Identifier: Apache-2.0
#include "src/engine/strategies/parameter_strategy.h"

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/engine/finite_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace tessera {

namespace {

// The ids without kZeroRow, [n] int64.
at::Tensor lookup_rows(const IdBags& bags) {
  at::Tensor rows = at::empty({bags.nnz() - bags.zero_rows}, at::kLong);
  std::copy_if(
      bags.ids.begin(),
      bags.ids.end(),
      rows.mutable_data_ptr<int64_t>(),
      [](uint32_t id) { return id != kZeroRow; });
  return rows;
}

// Whether each bag has an id that is not kZeroRow, [bags] bool.
at::Tensor bags_with_rows(const IdBags& bags) {
  at::Tensor has_rows = at::zeros({bags.bags}, at::kBool);
  bool* out = has_rows.mutable_data_ptr<bool>();
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    for (int64_t i = bags.begin(bag); i < bags.end(bag) && !out[bag]; ++i) {
      out[bag] = bags.ids[i] != kZeroRow;
    }
  }
  return has_rows;
}

// Raises an error if the gradient of a bag with rows is not finite.
void refuse_non_finite(
    const EmbeddingState& state,
    size_t feature,
    const at::Tensor& has_rows,
    const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  // If a number is not finite, their sum isn't either. A sum may also overflow.
  if (std::isfinite(gradient.sum().item<double>())) {
    return;
  }
  const at::Tensor rows = gradient.reshape({has_rows.size(0), -1});
  const at::Tensor refused = at::isfinite(rows)
                                 .all(/*dim=*/1)
                                 .logical_not()
                                 .logical_and(has_rows)
                                 .nonzero();
  if (refused.size(0) == 0) {
    return;
  }
  const auto bag = refused[0].item<int64_t>();
  const at::Tensor values = rows[bag];
  TESSERA_CHECK_VALUE(
      false,
      "{}",
      non_finite_message(
          state,
          feature,
          bag,
          values.masked_select(at::isfinite(values).logical_not())[0]
              .item<float>()));
}

}  // namespace

ParameterStrategy::ParameterStrategy(
    std::shared_ptr<EmbeddingState> state,
    bool sparse_gradients)
    : state_(std::move(state)) {
  for (const TableState& table : state_->tables) {
    TESSERA_CHECK_NOT_IMPLEMENTED(
        table.dynamic == nullptr,
        "[table '{}'] keys need Strategy::engine(), because a parameter of Strategy::host() or dense(), which a torch::optim updates, can't grow. Use the engine.",
        shorten(table.name));
    TESSERA_CHECK_VALUE(
        table.config->dtype == at::kFloat,
        "[table '{}'] dtype must be kFloat on Strategy::host() and Strategy::dense(), but got {}. Optimizers of LibTorch would lose small steps by rounding. Use kFloat or Strategy::engine().",
        shorten(table.name),
        to_string(table.config->dtype));
    table.parameters.requires_grad_(table.config->trainable);
    gradient_rows_.push_back(
        sparse_gradients ? nullptr
                         : std::make_shared<GradientRows>(table.parameters));
  }
}

std::shared_ptr<GradientRows> ParameterStrategy::gradient_rows(size_t table) {
  return gradient_rows_[table];
}

// While updates are not allowed, backward passes add to temporary gradients, which are
// dropped afterwards.
void ParameterStrategy::set_updates_enabled(bool are_enabled) {
  *are_updates_enabled_ = are_enabled;
  if (!are_enabled) {
    for (const TableState& table : state_->tables) {
      kept_gradients_.push_back(table.parameters.grad());
      table.parameters.mutable_grad() = at::Tensor();
    }
    return;
  }
  for (size_t i = 0; i < state_->tables.size(); ++i) {
    state_->tables[i].parameters.mutable_grad() = std::move(kept_gradients_[i]);
  }
  kept_gradients_.clear();
}

std::vector<std::pair<std::string, at::Tensor>> ParameterStrategy::
    parameters() {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (size_t i = 0; i < state_->tables.size(); ++i) {
    parameters.emplace_back(
        "table_" + std::to_string(i), state_->tables[i].parameters);
  }
  return parameters;
}

std::vector<at::Tensor> ParameterStrategy::forward(Batch batch) {
  const ProfileScope scope("tessera::lookup");
  std::vector<at::Tensor> activations;
  for (size_t i = 0; i < batch.bags.size(); ++i) {
    const IdBags& bags = batch.bags[i];
    const TableState& table = state_->tables[state_->features[i].table];
    state_->out_of_range_count += bags.zero_rows;
    const LookupTable rows{table.parameters, buckets_of(*table.config)};
    activations.push_back(
        lookup(rows, bags, batch.weights[i]).view(bags.activation_shape()));
    if (refuses_non_finite(*state_) && table.parameters.requires_grad() &&
        activations.back().requires_grad()) {
      activations.back().register_hook(
          [state = state_,
           feature = i,
           are_enabled = are_updates_enabled_,
           has_rows = bags_with_rows(bags)](const at::Tensor& gradient) {
            if (gradient.defined() && *are_enabled) {
              refuse_non_finite(*state, feature, has_rows, gradient);
            }
          });
    }
    const auto marked = gradient_rows_[state_->features[i].table];
    if (marked != nullptr && table.parameters.requires_grad() &&
        activations.back().requires_grad()) {
      activations.back().register_hook(
          [marked,
           are_enabled = are_updates_enabled_,
           rows = lookup_rows(bags)](const at::Tensor& gradient) {
            if (gradient.defined() && *are_enabled) {
              marked->mark_touched(rows);
            }
          });
    }
  }
  return activations;
}

}  // namespace tessera
