// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/custom_optimizer.h>

#include <tessera/common/shorten.h>

#include "optim/optimizer_definition.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <algorithm>
#include <set>

namespace tessera::optim {

namespace {

using at::Tensor;

bool is_identifier(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
        (c >= 'A' && c <= 'Z');
  });
}

// The layout of a tensor before a custom rule runs. The rule must not change it.
struct Layout {
  explicit Layout(const Tensor& tensor)
      : sizes(tensor.sizes().vec()), options(tensor.options()) {}

  bool matches(const Tensor& tensor) const {
    return tensor.defined() && tensor.sizes() == at::IntArrayRef(sizes) &&
        tensor.dtype() == options.dtype() &&
        tensor.device() == options.device() &&
        tensor.layout() == options.layout();
  }

  std::vector<int64_t> sizes;
  at::TensorOptions options;
};

// Checks the tensor that a custom rule left in place of `original`, and `original`
// itself, because the rule may have resized it.
void check_result(
    const Tensor& result,
    const Tensor& original,
    const Layout& layout,
    const std::string& what,
    const std::string& where) {
  const Tensor& mismatched = layout.matches(result) ? original : result;
  TESSERA_CHECK_VALUE(
      layout.matches(mismatched),
      "{} the custom rule must leave {} as {}, but left {}. Update the tensor in place.",
      where,
      what,
      describe(layout.options, layout.sizes),
      describe(mismatched));
}

struct CustomOptimizerDefinition final : OptimizerDefinition<CustomOptimizer> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    std::vector<SlotSpec> slots;
    for (const CustomSlot& slot : spec.slots) {
      slots.push_back(
          {.name = slot.name,
           .initial_value = slot.initial_value,
           .is_per_row = slot.is_per_row});
    }
    return slots;
  }

  void validate(const RangeChecks& checks) const override {
    checks.require(
        spec.rule.function() != nullptr,
        "rule",
        spec.rule.is_set() ? "a function, but is the placeholder of '" +
                shorten(spec.rule.name()) + "'. Replace it by CustomRule(\"" +
                shorten(spec.rule.name()) + "\", function)."
                           : "set. Give it CustomRule(name, function).");
    checks.require(
        !spec.rule.name().empty(),
        "rule",
        "named, so that saved configs can refer to it. Give it CustomRule(name, function).");
    checks.require(
        spec.use_gradient_accumulation,
        "use_gradient_accumulation",
        "true, because the rule gets the sum of a row's gradients.");
    std::set<std::string> names;
    for (const CustomSlot& slot : spec.slots) {
      checks.require(
          is_identifier(slot.name) && names.insert(slot.name).second,
          "the names of slots",
          "different and consist of letters, digits and _, but got '" +
              shorten(slot.name) + "'. Rename the slot.");
      checks.finite("slots: initial_value", slot.initial_value);
    }
  }

  kernels::RowRule row_rule(const StepContext& /*context*/) const override {
    TORCH_INTERNAL_ASSERT(false, "custom rules have no kernel");
    return {};
  }

  // Runs the user's rule and checks the tensors that it leaves.
  void update_rows(const TensorUpdate& update) const override {
    const std::string& where = update.where;
    const Tensor weights = update.weight;
    const std::vector<Tensor> slots = update.slots;
    const Layout layout(weights);
    const std::vector<Layout> slot_layouts(slots.begin(), slots.end());
    CustomRows custom{
        .weights = weights,
        .slots = slots,
        .gradients = update.gradient.clone(),
        .learning_rate = update.context.learning_rate,
        .update = update.context.update};
    (*spec.rule.function())(custom);
    check_result(custom.weights, weights, layout, "weights", where);
    TESSERA_CHECK_VALUE(
        custom.slots.size() == slots.size(),
        "{} the custom rule must leave {} slots, but left {}. Do not add or remove slots.",
        where,
        slots.size(),
        custom.slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      check_result(
          custom.slots[i],
          slots[i],
          slot_layouts[i],
          "slot '" + shorten(spec.slots[i].name) + "'",
          where);
    }
    // The slots are copied first, because a rule may have exchanged some of the tensors.
    for (Tensor& slot : custom.slots) {
      slot = slot.clone();
    }
    weights.copy_(custom.weights);
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].copy_(custom.slots[i]);
    }
  }
};

}  // namespace

DefinitionOf<CustomOptimizer> definition_of(const CustomOptimizer& spec) {
  return std::make_unique<CustomOptimizerDefinition>(spec);
}

}  // namespace tessera::optim
