// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/named_function.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::optim {

/// Describes a slot that a SlotCreation creates.
struct SlotRequest {
  /// The name of the table that the slot belongs to.
  std::string table = {};
  /// The rows of this table, [vocab, dim], which share the layer's memory. Rows of kChar are
  /// a float32 copy instead. With a sharded strategy, these are the rows of this rank. With
  /// Strategy::host() and padded(), this tensor is the layer's parameter, so an optimizer can
  /// use it as the key of its state:
  /// add_slot(request.parameters, ...).
  at::Tensor parameters = {};
  /// Upstream's name: "accumulators", "momenta", ...
  std::string name = {};
  /// [vocab, dim], or [vocab] if the rule keeps one number per row. With
  /// distributed::sharded_strategy(), the slot holds only the rows of this rank:
  /// first_row, first_row + row_step, ... It may have none.
  std::vector<int64_t> shape = {};
  double initial_value = 0.0;
  int64_t first_row = 0;
  int64_t row_step = 1;
};

// snippet: tests/docs/reference_optim_test.cpp SlotCreation
/// A user's function that creates a slot's tensor. The function may keep the tensor, for
/// example in the user's own optimizer object.
///
/// With every strategy, the function is called once per slot when the layer is made. It
/// must return a new tensor: float32 on the CPU, contiguous, of the requested shape. The
/// layer updates, saves and loads this tensor itself, not a copy. So with Strategy::host()
/// and padded(), a table with a slot_creation has slots from the start, even if the user
/// trains the table with their own optimizer. Other tables have slots after
/// make_optimizer(layer). A copy of the layer has its own slots.
///
///   std::map<std::string, at::Tensor> slots;  // "accumulators": [10, 2]
///   const SlotCreation keep_slots("keep_slots", [&](const SlotRequest& request) {
///     slots[request.name] = torch::full(request.shape, request.initial_value);
///     return slots[request.name];
///   });
///   TPUEmbedding embedding(features, Adagrad{.slot_creation = keep_slots});
///
/// Source:  upstream's slot_variable_creation_fn.
class SlotCreation
    : public detail::NamedFunction<at::Tensor(const SlotRequest&)> {
 public:
  using NamedFunction::NamedFunction;

  /// Calls the function and checks the tensor that it returns.
  /// Errors:  c10::ValueError for a tensor of another shape, dtype or device,
  ///          or if this is a placeholder that was read from JSON.
  at::Tensor create(const SlotRequest& request) const;

  bool operator==(const SlotCreation&) const = default;
};

}  // namespace tessera::optim
