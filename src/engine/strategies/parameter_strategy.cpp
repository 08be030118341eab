// SPDX-License-Identifier: Apache-2.0
#include "src/engine/strategies/parameter_strategy.h"

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Storage.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/common/check.h"
#include "src/engine/finite_gradients.h"

namespace tessera {

namespace {

using torch::autograd::variable_list;

// The node of the autograd graph between a table and its lookups. While updates are not
// allowed, the table gets no gradient.
class TableNode : public torch::autograd::Node {
 public:
  explicit TableNode(std::shared_ptr<const std::atomic<bool>> are_enabled)
      : are_enabled_(std::move(are_enabled)) {}

  std::string name() const override {
    return "tessera::TableNode";
  }

  variable_list apply(variable_list&& gradients) override {
    return *are_enabled_ ? std::move(gradients) : variable_list(1);
  }

 private:
  std::shared_ptr<const std::atomic<bool>> are_enabled_;
};

// The node from which all activations of a forward pass come. A feature that is not in
// the loss gets a gradient of zeros, so that its rows count as touched.
class ActivationsNode : public torch::autograd::Node {
 public:
  std::string name() const override {
    return "tessera::ActivationsNode";
  }

  variable_list apply(variable_list&& gradients) override {
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined() && task_should_compute_output(i)) {
        gradients[i] = input_metadata(i).zeros_like();
      }
    }
    return std::move(gradients);
  }
};

// Returns the tensors as results of `node`, which passes their gradients on.
variable_list pass_through(
    const c10::intrusive_ptr<torch::autograd::Node>& node,
    const variable_list& tensors) {
  variable_list results;
  for (const at::Tensor& tensor : tensors) {
    results.push_back(tensor.detach());
  }
  node->set_next_edges(torch::autograd::collect_next_edges(tensors));
  torch::autograd::set_history(results, node);
  torch::autograd::fire_node_creation_hooks(node);
  return results;
}

// A gradient whose values can't be read or written, so that an optimizer that would apply
// it raises an error. It takes no memory. The error is the same for every function.
at::Tensor guarded_gradient(const TableState& table) {
  c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      table.parameters.nbytes(),
      at::DataPtr(nullptr, at::kCPU));
  storage.unsafeGetStorageImpl()
      ->release_data_and_set_meta_custom_data_ptr_error_msg_(fmt::format(
          "[NoTableUpdateGuard] table '{}' has no gradient while the guard exists, but a function has used it, such as step(), zero_grad(/*set_to_none=*/false) or clip_grad_norm_(). Call the function after the guard has ended.",
          shorten(table.name)));
  at::Tensor gradient = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::DispatchKey::CPU),
      table.parameters.dtype());
  gradient.unsafeGetTensorImpl()->set_sizes_and_strides(
      table.parameters.sizes(), table.parameters.strides());
  return gradient;
}

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
void check_finite(
    const EmbeddingState& state,
    size_t feature,
    const at::Tensor& has_rows,
    const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  // If a number is not finite, the sum isn't either. A sum of finite numbers may overflow.
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
        table.key_rows == nullptr,
        "[table '{}'] keys need Strategy::fused(), because a parameter of Strategy::host() or padded(), which a torch::optim updates, can't grow. Use Strategy::fused().",
        shorten(table.name));
    TESSERA_CHECK_VALUE(
        table.config->dtype == at::kFloat,
        "[table '{}'] dtype must be kFloat on Strategy::host() and Strategy::padded(), but got {}. Optimizers of LibTorch would lose small steps by rounding. Use kFloat or Strategy::fused().",
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

// While updates are not allowed, the gradients of the tables are set aside. Instead of
// them, an optimizer finds gradients that raise an error.
void ParameterStrategy::set_updates_enabled(bool are_enabled) {
  if (!are_enabled) {
    std::vector<at::Tensor> guards;
    for (const TableState& table : state_->tables) {
      guards.push_back(guarded_gradient(table));
    }
    guards_ = guards;
    kept_gradients_ = std::move(guards);
  }
  for (size_t i = 0; i < state_->tables.size(); ++i) {
    at::Tensor& gradient = state_->tables[i].parameters.mutable_grad();
    // If other code has zeroed or set the gradient meanwhile, its change stays.
    if (!are_enabled || gradient.is_same(guards_[i])) {
      std::swap(gradient, kept_gradients_[i]);
    }
  }
  if (are_enabled) {
    guards_.clear();
    kept_gradients_.clear();
  }
  *are_updates_enabled_ = are_enabled;
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

std::vector<at::Tensor> ParameterStrategy::tables_for_lookup() const {
  std::vector<at::Tensor> tables;
  for (const TableState& table : state_->tables) {
    tables.push_back(
        at::GradMode::is_enabled() && table.parameters.requires_grad()
            ? pass_through(
                  c10::make_intrusive<TableNode>(are_updates_enabled_),
                  {table.parameters})[0]
            : table.parameters);
  }
  return tables;
}

std::vector<at::Tensor> ParameterStrategy::forward(Batch batch) {
  const ProfileScope scope("tessera::lookup");
  const std::vector<at::Tensor> tables = tables_for_lookup();
  std::vector<at::Tensor> activations;
  std::vector<size_t> trained;  // the features that require a gradient
  variable_list trained_activations;
  for (size_t i = 0; i < batch.bags.size(); ++i) {
    const IdBags& bags = batch.bags[i];
    const size_t index = state_->features[i].table;
    const TableState& table = state_->tables[index];
    state_->out_of_range_count += bags.zero_rows;
    const LookupTable rows{tables[index], buckets_of(*table.config)};
    activations.push_back(
        lookup(rows, bags, batch.weights[i]).view(bags.activation_shape()));
    if (!activations.back().requires_grad()) {
      continue;
    }
    trained.push_back(i);
    trained_activations.push_back(activations.back());
    if (refuses_non_finite(*state_) && table.parameters.requires_grad()) {
      activations.back().register_hook(
          [state = state_,
           feature = i,
           are_enabled = are_updates_enabled_,
           has_rows = bags_with_rows(bags)](const at::Tensor& gradient) {
            if (gradient.defined() && *are_enabled) {
              check_finite(*state, feature, has_rows, gradient);
            }
          });
    }
    if (gradient_rows_[index] != nullptr && table.parameters.requires_grad()) {
      activations.back().register_hook(
          [marked = gradient_rows_[index],
           are_enabled = are_updates_enabled_,
           rows = lookup_rows(bags)](const at::Tensor& gradient) {
            if (gradient.defined() && *are_enabled) {
              marked->mark_touched(rows);
            }
          });
    }
  }
  if (!trained.empty()) {
    const variable_list results = pass_through(
        c10::make_intrusive<ActivationsNode>(), trained_activations);
    for (size_t i = 0; i < trained.size(); ++i) {
      activations[trained[i]] = results[i];
    }
  }
  return activations;
}

}  // namespace tessera
