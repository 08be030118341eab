// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizer.h>
#include <tessera/optim/slot_creation.h>

#include <cstdint>
#include <optional>

// Every spec ends with the same options. An update of a row has these steps, in this
// order: sum the gradients of the row's duplicates, clip the sum, decay the weight,
// apply the rule, clip the weight.
//
//   use_gradient_accumulation  false: the rule runs once per duplicate, in the
//                              order of the batch; gradients can't be clipped
//   clip_gradient_min, _max    limits of the summed gradient, elementwise
//   weight_decay_factor        weight -= factor * weight, before the rule
//   multiply_weight_decay_factor_by_learning_rate
//                              weight -= learning_rate * factor * weight
//   clip_weight_min, _max      limits of the updated weight
//   lazy (Adam: lazy_adam)     true: an update changes only rows of the batch;
//                              false: it sweeps the whole table, and the gradient
//                              of rows outside the batch is zero
//   gradient_accumulation_steps
//                              n > 1: gradients are accumulated, and every n-th
//                              pass applies their mean. Schedules use the
//                              number of passes, as in Keras
//   slot_creation              creates the slot tensors when the layer is made;
//                              unset: zeros or the spec's own initial value
//
// The formulas are for one row. Unless a spec says otherwise, gradient, weight and slots
// have shape [dim]. validate() raises c10::ValueError for options out of the stated
// range.

namespace tessera::optim {

namespace detail {

void visit_common_fields(auto& self, auto& visit) {
  visit("use_gradient_accumulation", self.use_gradient_accumulation);
  visit("clip_weight_min", self.clip_weight_min);
  visit("clip_weight_max", self.clip_weight_max);
  visit("clip_gradient_min", self.clip_gradient_min);
  visit("clip_gradient_max", self.clip_gradient_max);
  visit("weight_decay_factor", self.weight_decay_factor);
  visit(
      "multiply_weight_decay_factor_by_learning_rate",
      self.multiply_weight_decay_factor_by_learning_rate);
  visit("gradient_accumulation_steps", self.gradient_accumulation_steps);
  if constexpr (requires { self.lazy; }) {
    visit("lazy", self.lazy);
  }
  if constexpr (requires { self.slot_creation; }) {
    visit("slot_creation", self.slot_creation);
  }
}

}  // namespace detail

}  // namespace tessera::optim

/// The options that all specs have. They are a macro, because in C++20 a designated
/// initializer can't name a field of a base class.
#define TESSERA_COMMON_OPTIONS                                \
  bool use_gradient_accumulation = true;                      \
  std::optional<double> clip_weight_min = {};                 \
  std::optional<double> clip_weight_max = {};                 \
  std::optional<double> clip_gradient_min = {};               \
  std::optional<double> clip_gradient_max = {};               \
  std::optional<double> weight_decay_factor = {};             \
  bool multiply_weight_decay_factor_by_learning_rate = false; \
  int64_t gradient_accumulation_steps = 1

/// TESSERA_FIELDS() of a spec: its own fields, and then the common ones. It also declares
/// definition_of() and operator==.
#define TESSERA_OPTIMIZER_FIELDS(Spec, ...)                                  \
  bool operator==(const Spec&) const = default;                              \
  friend tessera::optim::DefinitionOf<Spec> definition_of(const Spec& spec); \
  static void visit_fields(auto& self, auto&& visit) {                       \
    TESSERA_VISIT_FIELDS(__VA_ARGS__)                                        \
    tessera::optim::detail::visit_common_fields(self, visit);                \
  }
