// SPDX-License-Identifier: Apache-2.0
#include "optim/spec_optimizer.h"

#include <tessera/optim/optimizers.h>

#include "optim/rate_reader.h"
#include "src/common/check.h"
#include "src/common/checked_archive.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace tessera::optim {

namespace {

constexpr int64_t kFormatVersion = 1;

std::string key_of(const char* kind, size_t index) {
  return std::string(kind).append("_").append(std::to_string(index));
}

// Converts a gradient to the layout that the spec needs. A spec that sweeps gets a
// dense gradient, with zeros in the other rows. A spec that does not sweep gets only
// the touched rows of a dense gradient, if they are known.
at::Tensor readable(
    const at::Tensor& gradient,
    bool sweeps,
    const std::function<at::Tensor()>& touched_rows) {
  if (gradient.layout() == at::kSparse) {
    return sweeps ? gradient.to_dense() : gradient.coalesce();
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
    const auto dense = [](const at::Tensor& tensor) {
      return tensor.layout() == at::kSparse ? tensor.to_dense() : tensor;
    };
    return dense(left) + dense(right);
  }
  const at::Tensor sum = left + right;
  return sum.layout() == at::kSparse ? sum.coalesce() : sum;
}

constexpr const char* kAccumulationSteps = "accumulation_steps";
constexpr const char* kSum = "sum";
constexpr const char* kSumIndices = "sum_indices";
constexpr const char* kSumValues = "sum_values";

void save_sum(const at::Tensor& sum, int64_t steps, CheckedArchive& archive) {
  archive.write(kAccumulationSteps, c10::IValue(steps));
  if (sum.layout() == at::kSparse) {
    archive.write(kSumIndices, sum._indices(), /*is_buffer=*/true);
    archive.write(kSumValues, sum._values(), /*is_buffer=*/true);
  } else {
    archive.write(kSum, sum, /*is_buffer=*/true);
  }
}

// Reads what save_sum() has written for `parameter`. The result is undefined if it does
// not fit.
at::Tensor load_sum(
    torch::serialize::InputArchive& archive,
    const at::Tensor& parameter) {
  const auto fits = [&](const at::Tensor& tensor, at::IntArrayRef shape) {
    return tensor.layout() == at::kStrided && tensor.sizes() == shape &&
        tensor.scalar_type() == parameter.scalar_type();
  };
  at::Tensor sum;
  if (archive.try_read(kSum, sum, /*is_buffer=*/true)) {
    return fits(sum, parameter.sizes()) ? sum.to(parameter.options())
                                        : at::Tensor();
  }
  at::Tensor indices;
  at::Tensor values;
  if (parameter.dim() < 2 ||
      !archive.try_read(kSumIndices, indices, /*is_buffer=*/true) ||
      !archive.try_read(kSumValues, values, /*is_buffer=*/true) ||
      indices.scalar_type() != at::kLong || indices.dim() != 2 ||
      indices.size(0) != 1) {
    return {};
  }
  std::vector<int64_t> shape = parameter.sizes().vec();
  shape[0] = indices.size(1);
  if (!fits(values, shape) || indices.lt(0).any().item<bool>() ||
      indices.ge(parameter.size(0)).any().item<bool>()) {
    return {};
  }
  return at::sparse_coo_tensor(
             indices, values.to(parameter.device()), parameter.sizes())
      .coalesce();
}

}  // namespace

void check_off_engine(const OptimizerSpec& spec, const std::string& where) {
  validate(spec, where);
  TESSERA_CHECK_VALUE(
      accumulates_duplicates(spec),
      "{} use_gradient_accumulation = false takes a row's duplicates one by one, but a gradient here is their sum already. Set it to true, or use Strategy::engine().",
      where);
}

std::unique_ptr<torch::optim::OptimizerOptions> SpecOptimizerOptions::clone()
    const {
  return std::make_unique<SpecOptimizerOptions>(*this);
}

double SpecOptimizerOptions::get_lr() const {
  return learning_rate_of(spec_).value(*iterations_, "[get_lr]");
}

void SpecOptimizerOptions::set_lr(double learning_rate) {
  const LearningRate replacement = learning_rate;
  replacement.validate("[set_lr]");
  modify(spec_, [&](auto& spec) { spec.learning_rate = replacement; });
}

// What is kept for one parameter.
struct SpecOptimizer::State
    : torch::optim::OptimizerCloneableParamState<State> {
  std::vector<at::Tensor> slots;  // in the order of slots_of()
  std::function<at::Tensor()> touched_rows;  // as in Bound
  // The accumulated gradient, or an undefined tensor.
  std::shared_ptr<at::Tensor> sum = std::make_shared<at::Tensor>();
};

// What one step does to one parameter.
struct SpecOptimizer::Update {
  std::string where = {};
  OptimizerSpec spec = {};
  UpdateMoment moment = {};
  TensorRows rows = {};
  State* state = nullptr;
  at::Tensor gradient = {};
  bool only_collects = false;
  // Of a custom rule: the new rows, computed before anything changes.
  TensorRows result = {};

  at::Tensor ids() const {
    return gradient._indices().select(0, 0);
  }
  bool is_sparse() const {
    return gradient.layout() == at::kSparse;
  }
  // Custom rules are not called without rows.
  bool has_rows() const {
    return !is_sparse() || gradient._nnz() > 0;
  }

  // Copies of the rows that change, updated.
  TensorRows compute() const {
    TensorRows touched;
    if (is_sparse()) {
      touched = gather_rows(rows, ids());
      update_rows(spec, moment, gradient._values(), touched, where);
      return touched;
    }
    touched.weights = rows.weights.clone();
    for (const at::Tensor& slot : rows.slots) {
      touched.slots.push_back(slot.clone());
    }
    update_rows(spec, moment, gradient, touched, where);
    return touched;
  }

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
      update_rows(spec, moment, gradient, rows, where);
    }
  }
};

SpecOptimizer::SpecOptimizer(
    const OptimizerSpec& spec,
    std::shared_ptr<int64_t> iterations)
    : Optimizer(
          std::vector<torch::optim::OptimizerParamGroup>{},
          std::make_unique<SpecOptimizerOptions>(spec, iterations)),
      iterations_(std::move(iterations)) {}

SpecOptimizer::SpecOptimizer(std::vector<SpecGroup> groups)
    : SpecOptimizer(groups[0].spec, std::make_shared<int64_t>(0)) {
  for (SpecGroup& group : groups) {
    add(group.spec, std::move(group.parameters));
  }
}

SpecOptimizer::SpecOptimizer(
    const std::vector<Bound>& bound,
    std::shared_ptr<int64_t> iterations)
    : SpecOptimizer(SGD{}, std::move(iterations)) {
  owns_slots_ = false;
  for (const Bound& entry : bound) {
    add(entry.spec, {entry.parameter});
    auto state = std::make_unique<State>();
    state->slots = entry.slots;
    state->sum = entry.sum;
    state->touched_rows = entry.touched_rows;
    state_[entry.parameter.unsafeGetTensorImpl()] = std::move(state);
    places_.push_back(entry.where);
  }
}

void SpecOptimizer::add(
    const OptimizerSpec& spec,
    std::vector<at::Tensor> parameters) {
  // LibTorch puts the defaults in place of options of a type of ours.
  add_param_group(torch::optim::OptimizerParamGroup(std::move(parameters)));
  param_groups_.back().set_options(
      std::make_unique<SpecOptimizerOptions>(spec, iterations_));
}

std::string SpecOptimizer::place_of(size_t group, size_t parameter) const {
  if (group < places_.size()) {
    return places_[group];
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
  for (const auto& group : param_groups_) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) {
        return true;
      }
    }
  }
  return false;
}

at::Tensor SpecOptimizer::sum_for(const at::Tensor& parameter) const {
  const auto found = state_.find(parameter.unsafeGetTensorImpl());
  return found == state_.end() ? at::Tensor()
                               : *static_cast<State&>(*found->second).sum;
}

std::vector<SpecOptimizer::Update> SpecOptimizer::plan() {
  std::vector<Update> updates;
  std::set<const void*> seen;
  std::vector<LearningRate> sources;
  for (const auto& group : param_groups_) {
    const auto& options =
        static_cast<const SpecOptimizerOptions&>(group.options());
    sources.push_back(learning_rate_of(options.spec()));
  }
  RateReader rates(learning_rate_tags(sources), *iterations_);
  const bool is_step = has_gradients();
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const OptimizerSpec& spec =
        static_cast<const SpecOptimizerOptions&>(param_groups_[g].options())
            .spec();
    check_off_engine(spec, place_of(g, 0));
    const int64_t passes = gradient_accumulation_steps_of(spec);
    const bool is_due = (*iterations_ + 1) % passes == 0;
    const std::vector<SlotSpec> slots = slots_of(spec);
    for (size_t i = 0; i < param_groups_[g].params().size(); ++i) {
      const at::Tensor& parameter = param_groups_[g].params()[i];
      at::Tensor gradient = parameter.grad();
      if (!gradient.defined() && is_step && is_due) {
        gradient = sum_for(parameter);  // a missing gradient counts as zeros
      }
      if (!gradient.defined()) {
        continue;
      }
      const std::string where = place_of(g, i);
      TESSERA_CHECK_VALUE(
          seen.insert(parameter.unsafeGetTensorImpl()).second,
          "{} is given twice. Leave one out: each step updates it once.",
          where);
      TESSERA_CHECK_VALUE(
          parameter.dim() >= 1 ||
              std::none_of(
                  slots.begin(),
                  slots.end(),
                  [](const SlotSpec& slot) { return slot.is_per_row; }),
          "{} {} works along the last dimension, but got a scalar.",
          where,
          name_of(spec));
      TESSERA_CHECK_VALUE(
          gradient.layout() != at::kSparse ||
              (gradient.sparse_dim() == 1 && parameter.dim() >= 2),
          "{} a sparse gradient must hold whole rows of a parameter of rank 2 or above, but got {} sparse dimensions for rank {}.",
          where,
          gradient.layout() == at::kSparse ? gradient.sparse_dim() : 0,
          parameter.dim());
      State& state = state_of(parameter, spec);
      Update update{
          .where = where,
          .spec = spec,
          .rows = {.weights = parameter.detach(), .slots = state.slots},
          .state = &state,
          .gradient =
              readable(gradient, sweeps_all_rows(spec), state.touched_rows)};
      update.only_collects = !is_due;
      if (passes > 1 && parameter.grad().defined()) {
        update.gradient = sum_of(*state.sum, update.gradient);
      }
      if (!update.only_collects) {
        update.moment = {
            .learning_rate = rates.read(g, sources[g], where),
            .update = *iterations_ / passes + 1};
      }
      updates.push_back(std::move(update));
    }
  }
  for (Update& update : updates) {
    const int64_t passes = gradient_accumulation_steps_of(update.spec);
    if (update.only_collects) {
      continue;
    }
    if (passes > 1) {
      update.gradient = update.gradient / static_cast<double>(passes);
      if (update.is_sparse()) {
        update.gradient = update.gradient.coalesce();
      }
    }
    if (update.spec.get_if<CustomOptimizer>() != nullptr && update.has_rows()) {
      update.result = update.compute();
    }
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
  std::vector<Update> updates = plan();
  for (Update& update : updates) {
    if (update.only_collects) {
      *update.state->sum = update.gradient;
      continue;
    }
    update.apply();
    *update.state->sum = at::Tensor();
  }
  *iterations_ += updates.empty() ? 0 : 1;
  return loss;
}

void SpecOptimizer::save(torch::serialize::OutputArchive& output) const {
  CheckedArchive archive(output);
  archive.write("format_version", c10::IValue(kFormatVersion));
  archive.write("iterations", c10::IValue(*iterations_));
  archive.write(
      "groups", c10::IValue(static_cast<int64_t>(param_groups_.size())));
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& options =
        static_cast<const SpecOptimizerOptions&>(param_groups_[g].options());
    CheckedArchive group(archive.compilation_unit());
    group.write("optimizer", c10::IValue(name_of(options.spec())));
    const LearningRate& rate = learning_rate_of(options.spec());
    if (rate.is_constant()) {
      group.write("learning_rate", c10::IValue(rate.value(0, "")));
    }
    const std::vector<at::Tensor>& parameters = param_groups_[g].params();
    group.write(
        "parameters", c10::IValue(static_cast<int64_t>(parameters.size())));
    for (size_t i = 0; owns_slots_ && i < parameters.size(); ++i) {
      const auto found = state_.find(parameters[i].unsafeGetTensorImpl());
      if (found == state_.end()) {
        continue;  // never updated
      }
      const auto& state = static_cast<const State&>(*found->second);
      CheckedArchive entry(archive.compilation_unit());
      const std::vector<SlotSpec> slots = slots_of(options.spec());
      for (size_t slot = 0; slot < slots.size(); ++slot) {
        entry.write(
            slot_key(slots[slot].name), state.slots[slot], /*is_buffer=*/true);
      }
      if (state.sum->defined()) {
        save_sum(
            *state.sum, gradient_accumulation_steps_of(options.spec()), entry);
      }
      group.write(key_of("parameter", i), entry);
    }
    archive.write(key_of("group", g), group);
  }
  archive.finish();
}

void SpecOptimizer::load(torch::serialize::InputArchive& archive) {
  std::string problems;
  const auto expect = [&](bool is_right, const std::string& problem) {
    problems += is_right ? "" : "\n  " + problem;
  };
  c10::IValue version;
  TESSERA_CHECK_VALUE(
      archive.try_read("format_version", version) && version.isInt() &&
          version.toInt() == kFormatVersion,
      "[SpecOptimizer::load] expected what an optimizer of make_optimizer() saved, format_version {}.",
      kFormatVersion);
  verify_checksums(archive, "[SpecOptimizer::load]");
  c10::IValue iterations;
  expect(
      archive.try_read("iterations", iterations) && iterations.isInt() &&
          iterations.toInt() >= 0,
      "iterations is missing or negative");
  c10::IValue groups;
  expect(
      archive.try_read("groups", groups) && groups.isInt() &&
          groups.toInt() == static_cast<int64_t>(param_groups_.size()),
      "the number of groups differs from " +
          std::to_string(param_groups_.size()));

  std::vector<std::pair<SpecOptimizerOptions*, double>> rates;
  struct Loaded {
    at::Tensor parameter = {};
    std::vector<at::Tensor> slots = {};
    at::Tensor sum = {};
  };
  std::vector<Loaded> states;
  bool lacks_sums = false;
  for (size_t g = 0; problems.empty() && g < param_groups_.size(); ++g) {
    auto& options =
        static_cast<SpecOptimizerOptions&>(param_groups_[g].options());
    torch::serialize::InputArchive group;
    c10::IValue name;
    if (!archive.try_read(key_of("group", g), group) ||
        !group.try_read("optimizer", name) || !name.isString()) {
      expect(false, "group " + std::to_string(g) + " is missing");
      continue;
    }
    expect(
        name.toStringRef() == name_of(options.spec()),
        "group " + std::to_string(g) + " is of " + name_of(options.spec()) +
            ", but the archive's is of " + name.toStringRef());
    c10::IValue rate;
    if (group.try_read("learning_rate", rate)) {
      const bool is_rate = rate.isDouble() && std::isfinite(rate.toDouble()) &&
          rate.toDouble() >= 0.0;
      expect(
          is_rate,
          "group " + std::to_string(g) + " has no usable learning_rate");
      rates.emplace_back(&options, is_rate ? rate.toDouble() : 0.0);
    }
    const std::vector<at::Tensor>& parameters = param_groups_[g].params();
    c10::IValue count;
    expect(
        group.try_read("parameters", count) && count.isInt() &&
            count.toInt() == static_cast<int64_t>(parameters.size()),
        "group " + std::to_string(g) + " has not the " +
            std::to_string(parameters.size()) + " parameters of this one");
    const int64_t steps = gradient_accumulation_steps_of(options.spec());
    bool has_sum = !owns_slots_ || iterations.toInt() % steps == 0;
    for (size_t i = 0; owns_slots_ && i < parameters.size(); ++i) {
      torch::serialize::InputArchive entry;
      if (!group.try_read(key_of("parameter", i), entry)) {
        continue;
      }
      Loaded loaded{.parameter = parameters[i]};
      for (const SlotSpec& slot : slots_of(options.spec())) {
        at::Tensor value;
        const bool fits =
            entry.try_read(slot_key(slot.name), value, /*is_buffer=*/true) &&
            value.scalar_type() == parameters[i].scalar_type() &&
            value.sizes() ==
                at::IntArrayRef(slot_shape(slot, parameters[i].sizes()));
        expect(
            fits,
            place_of(g, i) + " slot " + slot.name +
                " is missing or of another shape or type");
        loaded.slots.push_back(value);
      }
      c10::IValue saved_steps;
      if (entry.try_read(kAccumulationSteps, saved_steps)) {
        has_sum = true;
        expect(
            saved_steps.isInt() && saved_steps.toInt() == steps,
            place_of(g, i) +
                " was saved in the middle of another gradient accumulation "
                "than over " +
                std::to_string(steps) + " steps");
        loaded.sum = load_sum(entry, parameters[i]);
        expect(
            loaded.sum.defined(),
            place_of(g, i) +
                " has no collected gradient of its shape and type");
      }
      states.push_back(std::move(loaded));
    }
    lacks_sums = lacks_sums || !has_sum;
  }
  TESSERA_CHECK_VALUE(
      problems.empty(),
      "[SpecOptimizer::load] the archive does not fit this optimizer; nothing was changed:{}",
      problems);
  for (const auto& [options, rate] : rates) {
    options->set_lr(rate);
  }
  if (!owns_slots_) {
    return;  // The layer loads counter, slots and sums.
  }
  *iterations_ = iterations.toInt();
  if (lacks_sums) {
    TORCH_WARN(
        "[SpecOptimizer::load] what was loaded was saved after pass ",
        *iterations_,
        ", in the middle of a gradient accumulation, but has no collected "
        "gradients: these passes count as zeros in the next update.");
  }
  state_.clear();
  for (const Loaded& loaded : states) {
    auto state = std::make_unique<State>();
    for (const at::Tensor& value : loaded.slots) {
      state->slots.push_back(value.to(loaded.parameter.options()));
    }
    *state->sum = loaded.sum;
    state_[loaded.parameter.unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace tessera::optim
