// SPDX-License-Identifier: Apache-2.0
#include "optim/spec_optimizer.h"

#include <tessera/optim/optimizers.h>

#include "optim/dense_update.h"
#include "src/common/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <utility>

namespace tessera::optim {

namespace {

// Returns the gradient as a dense tensor. LibTorch's to_dense() loses the value of a row
// of one column if the stride is 0, as in gradients from the backward pass of sum().
at::Tensor dense(const at::Tensor& gradient) {
  if (gradient.layout() != at::kSparse) {
    return gradient;
  }
  const at::Tensor values = gradient._values();
  return at::zeros(gradient.sizes(), values.options())
      .index_add_(0, gradient._indices().select(0, 0), values);
}

// Converts a gradient to the layout that the spec needs. A spec that sweeps gets a
// dense gradient, with zeros in the other rows. A spec that does not sweep gets only
// the touched rows of a dense gradient, if they are known.
at::Tensor in_required_layout(
    const at::Tensor& gradient,
    bool sweeps,
    const std::function<at::Tensor()>& touched_rows) {
  if (gradient.layout() == at::kSparse) {
    return sweeps ? dense(gradient) : gradient.coalesce();
  }
  if (sweeps || !touched_rows) {
    return gradient;
  }
  const at::Tensor rows = touched_rows();
  return at::_sparse_coo_tensor_unsafe(
             rows.unsqueeze(0),
             gradient.index_select(0, rows),
             gradient.sizes(),
             gradient.options().layout(at::kSparse))
      ._coalesced_(true);
}

at::Tensor sum_of(const at::Tensor& left, const at::Tensor& right) {
  if (!left.defined()) {
    return right.clone();
  }
  if (left.layout() != right.layout()) {
    return dense(left) + dense(right);
  }
  const at::Tensor sum = left + right;
  return sum.layout() == at::kSparse ? sum.coalesce() : sum;
}

// Writes all rows of `from` to the rows `ids` of `to`.
void scatter_rows(
    const TensorRows& from,
    const at::Tensor& ids,
    const TensorRows& to) {
  to.weights.index_copy_(0, ids, from.weights);
  for (size_t i = 0; i < to.slots.size(); ++i) {
    to.slots[i].index_copy_(0, ids, from.slots[i]);
  }
}

void check_gradient(
    const at::Tensor& gradient,
    const at::Tensor& parameter,
    const OptimizerSpec& spec,
    const std::string& where) {
  const std::vector<SlotSpec> slots = slots_of(spec);
  TESSERA_CHECK_VALUE(
      parameter.dim() >= 1 ||
          std::ranges::none_of(slots, &SlotSpec::is_per_row),
      "{} {} has a slot per row, so it needs a parameter of one dimension or more, but got a scalar. Reshape the parameter to [1].",
      where,
      name_of(spec));
  TESSERA_CHECK_VALUE(
      gradient.layout() != at::kSparse ||
          (gradient.sparse_dim() == 1 && parameter.dim() >= 2),
      "{} a sparse gradient must hold whole rows of a parameter of rank 2 or above, but got {} sparse dimensions for rank {}. Convert the gradient with to_dense().",
      where,
      gradient.layout() == at::kSparse ? gradient.sparse_dim() : 0,
      parameter.dim());
  TESSERA_CHECK_VALUE(
      gradient.sizes() == parameter.sizes(),
      "{} the gradient must have the shape of the parameter, {}, but has {}. Sum or reshape it.",
      where,
      parameter.sizes(),
      gradient.sizes());
  if (gradient.layout() == at::kStrided) {
    // Raises an error under a NoTableUpdateGuard, whose gradients can't be read.
    static_cast<void>(gradient.const_data_ptr());
  }
}

void check_slots(
    const std::vector<at::Tensor>& slots,
    const at::Tensor& parameter,
    const OptimizerSpec& spec,
    const std::string& where) {
  const std::vector<SlotSpec> specs = slots_of(spec);
  for (size_t i = 0; i < slots.size(); ++i) {
    TESSERA_CHECK_VALUE(
        slots[i].sizes() == slot_shape(specs[i], parameter.sizes()),
        "{} the slot '{}' has the shape {}, which does not fit the parameter, whose shape is {} now. If you change the shape of a parameter, make a new optimizer.",
        where,
        specs[i].name,
        slots[i].sizes(),
        parameter.sizes());
  }
}

}  // namespace

void check_without_fused(const OptimizerSpec& spec, const std::string& where) {
  validate(spec, where);
  TESSERA_CHECK_VALUE(
      accumulates_duplicates(spec),
      "{} use_gradient_accumulation = false applies the gradients of a row one by one, but this optimizer gets only their sum. Set it to true, or use Strategy::fused().",
      where);
}

SpecOptimizerOptions::SpecOptimizerOptions(
    OptimizerSpec spec,
    std::shared_ptr<const int64_t> passes)
    : spec_(std::move(spec)),
      own_learning_rate_(learning_rate_of(spec_)),
      passes_(std::move(passes)) {}

std::unique_ptr<torch::optim::OptimizerOptions> SpecOptimizerOptions::clone()
    const {
  return std::make_unique<SpecOptimizerOptions>(*this);
}

double SpecOptimizerOptions::get_lr() const {
  return learning_rate_of(spec_).value(*passes_, "[get_lr]");
}

void SpecOptimizerOptions::set_lr(double learning_rate) {
  const LearningRate replacement = learning_rate;
  replacement.validate("[set_lr]");
  modify(spec_, [&](auto& spec) { spec.learning_rate = replacement; });
  set_rate_ = learning_rate;
}

void SpecOptimizerOptions::reset_lr() {
  modify(spec_, [&](auto& spec) { spec.learning_rate = own_learning_rate_; });
  set_rate_.reset();
}

// What one step does to one parameter.
struct SpecOptimizer::Update {
  std::string where = {};
  OptimizerSpec spec = {};
  StepContext context = {};
  TensorRows rows = {};
  State* state = nullptr;
  at::Tensor gradient = {};
  bool only_accumulates = false;
  // The new rows of a custom rule. They are computed before anything changes, because the
  // rule may throw.
  TensorRows result = {};

  at::Tensor ids() const {
    return gradient._indices().select(0, 0);
  }
  bool is_sparse() const {
    return gradient.layout() == at::kSparse;
  }
  // Whether there are rows to update. Custom rules are not called without rows.
  bool has_rows() const {
    return !is_sparse() || gradient._nnz() > 0;
  }

  // Returns updated copies of the touched rows.
  TensorRows compute() const {
    const auto clone = [](const at::Tensor& values) { return values.clone(); };
    TensorRows touched = is_sparse()
        ? gather_rows(rows, ids())
        : TensorRows{clone(rows.weights), c10::fmap(rows.slots, clone)};
    update_rows(
        spec,
        context,
        is_sparse() ? gradient._values() : gradient,
        touched,
        where);
    return touched;
  }

  // Divides the accumulated gradient by the number of passes, and runs a custom rule,
  // which may throw.
  void prepare() {
    if (only_accumulates) {
      return;
    }
    const int64_t accumulation_steps = gradient_accumulation_steps_of(spec);
    if (accumulation_steps > 1) {
      gradient = gradient / static_cast<double>(accumulation_steps);
      if (is_sparse()) {
        gradient = gradient.coalesce();
      }
    }
    if (spec.get_if<CustomOptimizer>() != nullptr && has_rows()) {
      result = compute();
    }
  }

  // Updates with stock operators.
  void apply() {
    if (!has_rows()) {
      return;
    }
    if (is_sparse()) {
      scatter_rows(result.weights.defined() ? result : compute(), ids(), rows);
    } else if (result.weights.defined()) {
      rows.weights.copy_(result.weights);
      for (size_t i = 0; i < rows.slots.size(); ++i) {
        rows.slots[i].copy_(result.slots[i]);
      }
    } else {
      update_rows(spec, context, gradient, rows, where);
    }
  }
};

SpecOptimizer::SpecOptimizer(
    const OptimizerSpec& spec,
    std::shared_ptr<int64_t> passes)
    : Optimizer(
          std::vector<torch::optim::OptimizerParamGroup>{},
          std::make_unique<SpecOptimizerOptions>(spec, passes)),
      passes_(std::move(passes)) {}

SpecOptimizer::SpecOptimizer(std::vector<SpecGroup> groups)
    : SpecOptimizer(groups[0].spec, std::make_shared<int64_t>(0)) {
  for (SpecGroup& group : groups) {
    add(group.spec, std::move(group.parameters));
  }
}

SpecOptimizer::SpecOptimizer(
    const std::vector<BoundParameter>& bound,
    std::shared_ptr<int64_t> passes)
    : SpecOptimizer(SGD{}, std::move(passes)) {
  owns_slots_ = false;
  for (const BoundParameter& entry : bound) {
    add(entry.spec, {entry.parameter});
    auto state = std::make_unique<State>();
    state->slots = entry.slots;
    state->sum = entry.sum;
    state->touched_rows = entry.touched_rows;
    state_[entry.parameter.unsafeGetTensorImpl()] = std::move(state);
    bound_names_.push_back(entry.where);
  }
}

void SpecOptimizer::add(
    const OptimizerSpec& spec,
    std::vector<at::Tensor> parameters) {
  // add_param_group() replaces options of unknown types by the defaults, so the options
  // are set afterwards.
  add_param_group(torch::optim::OptimizerParamGroup(std::move(parameters)));
  param_groups_.back().set_options(
      std::make_unique<SpecOptimizerOptions>(spec, passes_));
}

std::string SpecOptimizer::where_of(size_t group, size_t parameter) const {
  if (group < bound_names_.size()) {
    return bound_names_[group];
  }
  return "[group " + std::to_string(group) + ", parameter " +
      std::to_string(parameter) + "]";
}

SpecOptimizer::State& SpecOptimizer::state_of(
    const at::Tensor& parameter,
    const OptimizerSpec& spec) {
  const auto found = state_.find(parameter.unsafeGetTensorImpl());
  if (found != state_.end()) {
    return static_cast<State&>(*found->second);
  }
  auto state = std::make_unique<State>();
  for (const SlotSpec& slot : slots_of(spec)) {
    state->slots.push_back(at::full(
        slot_shape(slot, parameter.sizes()),
        slot.initial_value,
        parameter.options().requires_grad(false)));
  }
  State& result = *state;
  state_[parameter.unsafeGetTensorImpl()] = std::move(state);
  return result;
}

bool SpecOptimizer::has_gradients() const {
  return std::ranges::any_of(param_groups_, [](const auto& group) {
    return std::ranges::any_of(group.params(), [](const auto& parameter) {
      return parameter.grad().defined();
    });
  });
}

at::Tensor SpecOptimizer::sum_for(const at::Tensor& parameter) const {
  const auto found = state_.find(parameter.unsafeGetTensorImpl());
  return found == state_.end() ? at::Tensor()
                               : *static_cast<State&>(*found->second).sum;
}

SpecOptimizer::Update SpecOptimizer::update_of(
    const at::Tensor& parameter,
    const at::Tensor& gradient,
    const OptimizerSpec& spec,
    const std::string& where) {
  State& state = state_of(parameter, spec);
  check_slots(state.slots, parameter, spec, where);
  Update update{
      .where = where,
      .spec = spec,
      .rows = {.weights = parameter.detach(), .slots = state.slots},
      .state = &state,
      .gradient = in_required_layout(
          gradient, sweeps_all_rows(spec), state.touched_rows)};
  if (gradient_accumulation_steps_of(spec) > 1 && parameter.grad().defined()) {
    update.gradient = sum_of(*state.sum, update.gradient);
  }
  return update;
}

std::vector<SpecOptimizer::Update> SpecOptimizer::plan_updates() {
  std::vector<Update> updates;
  std::set<const void*> seen;
  const auto sources = c10::fmap(param_groups_, [](const auto& group) {
    return LearningRate(learning_rate_of(spec_of(group)));
  });
  LearningRateReader learning_rates(learning_rate_tags(sources), *passes_);
  const bool is_step = has_gradients();
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const OptimizerSpec& spec = spec_of(param_groups_[g]);
    check_without_fused(spec, where_of(g, 0));
    const int64_t accumulation_steps = gradient_accumulation_steps_of(spec);
    const bool is_due = (*passes_ + 1) % accumulation_steps == 0;
    for (size_t i = 0; i < param_groups_[g].params().size(); ++i) {
      const at::Tensor& parameter = param_groups_[g].params()[i];
      at::Tensor gradient = parameter.grad();
      if (!gradient.defined() && is_step && is_due) {
        gradient = sum_for(parameter);  // a missing gradient counts as zeros
      }
      if (!gradient.defined()) {
        continue;
      }
      const std::string where = where_of(g, i);
      TESSERA_CHECK_VALUE(
          seen.insert(parameter.unsafeGetTensorImpl()).second,
          "{} this parameter must be given once, but is given twice. Remove one of them, because a step updates a parameter once.",
          where);
      check_gradient(gradient, parameter, spec, where);
      updates.push_back(update_of(parameter, gradient, spec, where));
      updates.back().only_accumulates = !is_due;
      if (is_due) {
        updates.back().context = {
            .learning_rate =
                learning_rates.read(g, sources[g], [&] { return where; }),
            .update = *passes_ / accumulation_steps + 1};
      }
    }
  }
  for (Update& update : updates) {
    update.prepare();
  }
  return updates;
}

at::Tensor SpecOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  std::vector<Update> updates = plan_updates();
  DenseUpdate dense_update;
  for (Update& update : updates) {
    if (update.only_accumulates) {
      *update.state->sum = update.gradient;
      continue;
    }
    // make_optimizer(layer) promises stock operators.
    const bool uses_kernels = owns_slots_ && !update.is_sparse() &&
        dense_update.add(
            update.spec, update.context, update.gradient, update.rows);
    if (!uses_kernels) {
      // The parameter may share memory with earlier ones, so update them first.
      std::exchange(dense_update, {}).run();
      update.apply();
    }
    *update.state->sum = at::Tensor();
  }
  dense_update.run();
  *passes_ += updates.empty() ? 0 : 1;
  return loss;
}

}  // namespace tessera::optim
