// SPDX-License-Identifier: Apache-2.0
// Implements Strategy::host() and Strategy::padded().
#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Storage.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "src/common/check.h"
#include "src/engine/finite_gradients.h"
#include "src/engine/operator_lookup.h"
#include "src/engine/strategies/embedding_strategy.h"

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
  variable_list results = c10::fmap(
      tensors, [](const at::Tensor& tensor) { return tensor.detach(); });
  node->set_next_edges(torch::autograd::collect_next_edges(tensors));
  torch::autograd::set_history(results, node);
  torch::autograd::fire_node_creation_hooks(node);
  return results;
}

// A gradient without memory, whose values can't be read or written. An optimizer that
// would apply it raises an error. All access to the values raises the same error.
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
  std::ranges::remove_copy(
      bags.ids, rows.mutable_data_ptr<int64_t>(), kZeroRow);
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

// Records which rows of a table its dense gradient belongs to. The gradient alone does
// not distinguish a row with a zero gradient from a row that was not looked up.
class GradientRows : public std::enable_shared_from_this<GradientRows> {
 public:
  // `table`: a leaf of autograd, [rows, dim].
  explicit GradientRows(at::Tensor table) : table_(std::move(table)) {}

  // Marks rows in a backward pass that will add to table.grad(). `rows` is [n] int64
  // and may have duplicates.
  void mark_touched(const at::Tensor& rows) {
    const at::NoGradGuard no_grad;
    const int pass = torch::autograd::get_current_graph_task_id();
    if (pass != last_pass_) {
      last_pass_ = pass;
      if (!is_touched_.defined() || was_zeroed()) {
        is_touched_ = at::zeros({table_.size(0)}, at::kBool);
      }
      torch::autograd::Engine::get_default_engine().queue_callback(
          [self = shared_from_this()] {
            const at::Tensor& gradient = self->table_.grad();
            self->last_gradient_ = gradient.unsafeGetTensorImpl();
            self->last_version_ = gradient.defined()
                ? static_cast<int64_t>(gradient._version())
                : 0;
          });
    }
    is_touched_.index_fill_(0, rows, true);
  }

  // The rows that were marked since the gradient was zeroed, and all rows whose
  // gradient is not zero: [n] int64, sorted. table.grad() must be dense.
  at::Tensor touched() const {
    const at::NoGradGuard no_grad;
    at::Tensor is_touched = (table_.grad() != 0).any(1);
    if (is_touched_.defined()) {
      is_touched = is_touched.logical_or(is_touched_);
    }
    return is_touched.nonzero().view({-1});
  }

 private:
  // Whether the gradient was zeroed after the previous pass. LibTorch does not report
  // this.
  bool was_zeroed() const {
    const at::Tensor& gradient = table_.grad();
    if (!gradient.defined()) {
      return true;
    }
    const bool is_unchanged =
        gradient.unsafeGetTensorImpl() == last_gradient_ &&
        static_cast<int64_t>(gradient._version()) == last_version_;
    return !is_unchanged && !gradient.any().item<bool>();
  }

  at::Tensor table_;
  // [rows] bool. Undefined before the first mark_touched().
  at::Tensor is_touched_;
  int last_pass_ = -1;
  // The gradient at the end of the last pass.
  const at::TensorImpl* last_gradient_ = nullptr;
  int64_t last_version_ = 0;
};

// Looks up one feature with stock operators and returns its activation [bags, dim].
// `weights` is undefined, or has one weight for each value that the caller has passed.
using OperatorLookup = std::function<
    at::Tensor(const LookupTable&, const IdBags&, const at::Tensor& weights)>;

// Tables as ordinary parameters. Autograd computes their gradients, and a torch::optim
// updates them. As on Strategy::fused(), a feature that is not in the loss gets a
// gradient of zeros if another feature of the same forward pass is in it.
class ParameterStrategy : public EmbeddingStrategy {
 public:
  // `sparse_gradients`: whether `lookup` gives the tables sparse gradients.
  // Errors:  c10::ValueError for a 16-bit table; c10::NotImplementedError for a key table.
  ParameterStrategy(
      std::shared_ptr<EmbeddingState> state,
      bool sparse_gradients,
      OperatorLookup lookup)
      : state_(std::move(state)), lookup_(std::move(lookup)) {
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
      TESSERA_CHECK_VALUE(
          table.config->slot_dtype == at::kFloat,
          "[table '{}'] slot_dtype must be kFloat on Strategy::host() and Strategy::padded(), whose optimizers keep float32, but got {}. Use kFloat or Strategy::fused().",
          shorten(table.name),
          to_string(table.config->slot_dtype));
      table.parameters.requires_grad_(table.config->trainable);
      gradient_rows_.push_back(
          sparse_gradients ? nullptr
                           : std::make_shared<GradientRows>(table.parameters));
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
          lookup_(rows, bags, batch.weights[i]).view(bags.activation_shape()));
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
      if (gradient_rows_[index] != nullptr &&
          table.parameters.requires_grad()) {
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

  std::function<at::Tensor()> touched_rows(size_t table) override {
    const std::shared_ptr<GradientRows>& rows = gradient_rows_[table];
    return rows == nullptr ? std::function<at::Tensor()>()
                           : [rows] { return rows->touched(); };
  }

 private:
  // While updates are not allowed, the gradients of the tables are set aside. Instead of
  // them, an optimizer finds gradients that raise an error.
  void set_updates_enabled(bool are_enabled) override {
    if (!are_enabled) {
      guards_ = c10::fmap(state_->tables, guarded_gradient);
      kept_gradients_ = guards_;
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

  // The tables, whose gradients pass through nodes that can stop them.
  std::vector<at::Tensor> tables_for_lookup() const {
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

  std::shared_ptr<EmbeddingState> state_;
  OperatorLookup lookup_;
  // [tables], nullptr if gradients are sparse. Passes without updates mark no rows.
  std::vector<std::shared_ptr<GradientRows>> gradient_rows_;
  std::shared_ptr<std::atomic<bool>> are_updates_enabled_ =
      std::make_shared<std::atomic<bool>>(true);
  // Both are [tables] while updates are not allowed, and empty otherwise. The tables then
  // have `guards_` instead of their gradients, which are in `kept_gradients_`.
  std::vector<at::Tensor> guards_;
  std::vector<at::Tensor> kept_gradients_;
};

}  // namespace

std::unique_ptr<EmbeddingStrategy> make_host_strategy(
    std::shared_ptr<EmbeddingState> state,
    Strategy::Host options) {
  const bool is_sparse = options.sparse_gradients;
  return std::make_unique<ParameterStrategy>(
      std::move(state), is_sparse, [is_sparse](const auto&... arguments) {
        return lookup_by_operators(arguments..., is_sparse);
      });
}

std::unique_ptr<EmbeddingStrategy> make_padded_strategy(
    std::shared_ptr<EmbeddingState> state) {
  return std::make_unique<ParameterStrategy>(
      std::move(state), /*sparse_gradients=*/false, lookup_in_grid);
}

}  // namespace tessera
