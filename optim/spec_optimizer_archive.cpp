// SPDX-License-Identifier: Apache-2.0
// Saves and loads a SpecOptimizer.
#include "optim/spec_optimizer.h"

#include "src/common/check.h"
#include "src/common/checked_archive.h"
#include "src/common/tensor_text.h"

#include <tessera/common/shorten.h>

#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <optional>
#include <utility>

namespace tessera::optim {

namespace {

constexpr int64_t kFormatVersion = 1;

std::string key_of(const char* kind, size_t index) {
  return std::string(kind).append("_").append(std::to_string(index));
}

constexpr const char* kAccumulationSteps = "accumulation_steps";
constexpr const char* kSum = "sum";
constexpr const char* kSumIndices = "sum_indices";
constexpr const char* kSumValues = "sum_values";
// Marks a learning rate of set_lr(). Older archives have no mark, but every constant rate.
constexpr const char* kIsSetRate = "is_set_rate";

// nullopt if the archive has no such number.
std::optional<int64_t> read_number(
    torch::serialize::InputArchive& archive,
    const std::string& key) {
  c10::IValue value;
  return archive.try_read(key, value) && value.isInt()
      ? std::optional(value.toInt())
      : std::nullopt;
}

void save_sum(const at::Tensor& sum, int64_t steps, CheckedArchive& archive) {
  archive.write(kAccumulationSteps, c10::IValue(steps));
  if (sum.layout() == at::kSparse) {
    archive.write(kSumIndices, sum._indices());
    archive.write(kSumValues, sum._values());
  } else {
    archive.write(kSum, sum);
  }
}

// Reads what save_sum() has written for `parameter`. If that does not fit the parameter,
// the result is an undefined tensor.
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

// What was read from an archive, and the reasons why it does not fit.
struct SpecOptimizer::Loaded {
  struct Rate {
    size_t group = 0;
    double value = 0.0;
    bool is_set = false;  // by set_lr()
  };

  int64_t passes = 0;
  std::vector<Rate> rates = {};
  std::vector<std::pair<at::Tensor, std::unique_ptr<State>>> parameters = {};
  bool misses_sums = false;
  std::string problems = {};

  template <class... Args>
  void expect(
      bool holds,
      fmt::format_string<const Args&...> problem,
      const Args&... args) {
    problems += holds ? "" : "\n  " + fmt::format(problem, args...);
  }
  // `kind` is what is counted, and also the key of the number in the archive.
  void expect_count(
      const std::string& owner,
      const char* kind,
      size_t count,
      torch::serialize::InputArchive& archive) {
    const std::optional<int64_t> saved = read_number(archive, kind);
    expect(
        saved == static_cast<int64_t>(count),
        "{} has {} {}, but the archive has {}",
        owner,
        count,
        kind,
        saved ? std::to_string(*saved) : "no number of them");
  }
};

void SpecOptimizer::save(torch::serialize::OutputArchive& output) const {
  CheckedArchive archive(output);
  archive.write("format_version", c10::IValue(kFormatVersion));
  archive.write("iterations", c10::IValue(*passes_));
  archive.write(
      "groups", c10::IValue(static_cast<int64_t>(param_groups_.size())));
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const OptimizerSpec& spec = spec_of(param_groups_[g]);
    CheckedArchive group(archive.compilation_unit());
    group.write("optimizer", c10::IValue(name_of(spec)));
    if (const auto rate = options_of(param_groups_[g]).set_rate()) {
      group.write("learning_rate", c10::IValue(*rate));
      group.write(kIsSetRate, c10::IValue(true));
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
      const std::vector<SlotSpec> slots = slots_of(spec);
      for (size_t slot = 0; slot < slots.size(); ++slot) {
        entry.write(slot_key(slots[slot].name), state.slots[slot]);
      }
      if (state.sum->defined()) {
        save_sum(*state.sum, gradient_accumulation_steps_of(spec), entry);
      }
      group.write(key_of("parameter", i), entry);
    }
    archive.write(key_of("group", g), group);
  }
  archive.finish();
}

bool SpecOptimizer::read_parameter(
    size_t group,
    size_t parameter,
    torch::serialize::InputArchive& archive,
    Loaded& loaded) const {
  const at::Tensor& own = param_groups_[group].params()[parameter];
  const OptimizerSpec& spec = spec_of(param_groups_[group]);
  const std::string where = where_of(group, parameter);
  State& read =
      *loaded.parameters.emplace_back(own, std::make_unique<State>()).second;
  bool has_earlier = false;
  bool all_fit = true;
  for (const SlotSpec& slot : slots_of(spec)) {
    const std::vector<int64_t> shape = slot_shape(slot, own.sizes());
    at::Tensor value;
    bool has_slot =
        archive.try_read(slot_key(slot.name), value, /*is_buffer=*/true);
    if (!has_slot && !slot.earlier_name.empty()) {
      has_slot = archive.try_read(
          slot_key(slot.earlier_name), value, /*is_buffer=*/true);
      has_earlier = has_earlier || has_slot;
    }
    const bool fits = has_slot && value.scalar_type() == own.scalar_type() &&
        value.sizes() == at::IntArrayRef(shape);
    all_fit = all_fit && fits;
    loaded.expect(
        fits,
        "{} slot '{}' must be {}, but the archive has {}",
        where,
        slot.name,
        describe(own.scalar_type(), shape),
        describe(value));
    read.slots.push_back(value);
  }
  if (has_earlier && all_fit) {
    convert_earlier_slots(spec, read.slots);
  }
  c10::IValue saved_steps;
  if (!archive.try_read(kAccumulationSteps, saved_steps)) {
    return false;
  }
  const int64_t steps = gradient_accumulation_steps_of(spec);
  loaded.expect(
      saved_steps.isInt() && saved_steps.toInt() == steps,
      "{} gradient_accumulation_steps is {}, but the gradient that was saved is a part of {}",
      where,
      steps,
      saved_steps.isInt() ? std::to_string(saved_steps.toInt())
                          : "an unknown number of steps");
  *read.sum = load_sum(archive, own);
  loaded.expect(
      read.sum->defined(),
      "{} the collected gradient must be {}, but the archive has none of that type and shape",
      where,
      describe(own.scalar_type(), own.sizes()));
  return true;
}

void SpecOptimizer::read_group(
    size_t group,
    torch::serialize::InputArchive& archive,
    Loaded& loaded) const {
  const OptimizerSpec& spec = spec_of(param_groups_[group]);
  const std::string own_name = name_of(spec);
  const std::string where = "group " + std::to_string(group);
  torch::serialize::InputArchive entry;
  c10::IValue name;
  if (!archive.try_read(key_of("group", group), entry) ||
      !entry.try_read("optimizer", name) || !name.isString()) {
    loaded.expect(false, "{} is missing in the archive", where);
    return;
  }
  loaded.expect(
      name.toStringRef() == own_name,
      "{} has the optimizer {}, but the archive has {}",
      where,
      own_name,
      shorten(name.toStringRef()));
  c10::IValue learning_rate;
  if (entry.try_read("learning_rate", learning_rate)) {
    const bool is_learning_rate = learning_rate.isDouble() &&
        std::isfinite(static_cast<float>(learning_rate.toDouble())) &&
        learning_rate.toDouble() >= 0.0;
    loaded.expect(
        is_learning_rate,
        "{}: learning_rate must be finite in float32 and >= 0, but the archive has {}",
        where,
        learning_rate.isDouble() ? c10::str(learning_rate.toDouble())
                                 : "no number");
    if (is_learning_rate) {
      c10::IValue mark;
      const bool is_set = entry.try_read(kIsSetRate, mark);
      loaded.rates.push_back({group, learning_rate.toDouble(), is_set});
    }
  }
  const size_t num_parameters = param_groups_[group].params().size();
  loaded.expect_count(where, "parameters", num_parameters, entry);
  if (!owns_slots_) {
    return;
  }
  bool has_sum = loaded.passes % gradient_accumulation_steps_of(spec) == 0;
  for (size_t i = 0; i < num_parameters; ++i) {
    torch::serialize::InputArchive parameter;
    if (entry.try_read(key_of("parameter", i), parameter) &&
        read_parameter(group, i, parameter, loaded)) {
      has_sum = true;
    }
  }
  loaded.misses_sums = loaded.misses_sums || !has_sum;
}

SpecOptimizer::Loaded SpecOptimizer::read(
    torch::serialize::InputArchive& archive) const {
  const std::optional<int64_t> version = read_number(archive, "format_version");
  TESSERA_CHECK_VALUE(
      version == kFormatVersion,
      "[SpecOptimizer::load] expected the archive of an optimizer from make_optimizer(), with format_version {}, but got {}. Load what such an optimizer saved.",
      kFormatVersion,
      version ? "format_version " + std::to_string(*version)
              : "another archive");
  check_checksums(archive, "[SpecOptimizer::load]");
  Loaded loaded;
  loaded.passes = read_number(archive, "iterations").value_or(-1);
  loaded.expect(loaded.passes >= 0, "iterations is missing or negative");
  loaded.expect_count(
      "this optimizer", "groups", param_groups_.size(), archive);
  for (size_t g = 0; loaded.problems.empty() && g < param_groups_.size(); ++g) {
    read_group(g, archive, loaded);
  }
  TESSERA_CHECK_VALUE(
      loaded.problems.empty(),
      "[SpecOptimizer::load] the archive does not fit this optimizer; nothing was changed. Make the optimizer from the same specs and parameters as the saved one. The differences:{}",
      loaded.problems);
  return loaded;
}

void SpecOptimizer::load(torch::serialize::InputArchive& archive) {
  Loaded loaded = read(archive);
  for (auto& group : param_groups_) {
    static_cast<SpecOptimizerOptions&>(group.options()).reset_lr();
  }
  for (const auto& [group, rate, is_set] : loaded.rates) {
    if (is_set) {
      param_groups_[group].options().set_lr(rate);
    } else if (
        learning_rate_of(spec_of(param_groups_[group])) != LearningRate(rate)) {
      TORCH_WARN(fmt::format(
          "[SpecOptimizer::load] the archive is of an earlier version, which did not save whether set_lr() made the learning rate {} of group {}. The learning rate of the spec is used. If a scheduler had changed it, call set_lr({}).",
          rate,
          group,
          rate));
    }
  }
  if (!owns_slots_) {
    return;  // The layer loads the counter, the slots and the sums.
  }
  *passes_ = loaded.passes;
  if (loaded.misses_sums) {
    TORCH_WARN(
        "[SpecOptimizer::load] the archive was saved after pass ",
        *passes_,
        ", in the middle of a gradient accumulation, but has no collected "
        "gradients. The next update counts the gradients of these passes as "
        "zeros.");
  }
  state_.clear();
  for (auto& [parameter, state] : loaded.parameters) {
    for (at::Tensor& slot : state->slots) {
      // A copy, because in a damaged archive, the storage may be larger than the tensor, and
      // the next save() would write all of it.
      slot =
          slot.to(parameter.options(), /*non_blocking=*/false, /*copy=*/true);
    }
    state_[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace tessera::optim
