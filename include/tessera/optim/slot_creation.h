// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/named_function.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::optim {

/// A tensor beside the table that a spec asks for.
struct SlotRequest {
  /// The table it belongs to.
  std::string table = {};
  /// Upstream's name: "accumulators", "momenta", ...
  std::string name = {};
  /// [vocab, dim], or [vocab] where the rule keeps one number per row. On
  /// distributed::sharded_strategy() this rank's rows, if it has any: first_row, first_row +
  /// row_step, ...
  std::vector<int64_t> shape = {};
  double initial_value = 0.0;
  int64_t first_row = 0;
  int64_t row_step = 1;
};

/// The user's own function that creates a slot's tensor and may keep it, as an
/// optimizer object of the user's that owns the slots does.
///
/// On every strategy, it is called once per slot when the layer is made. It returns a
/// new tensor: float32 on the CPU, contiguous, of the requested shape. The layer
/// updates, saves and loads that very tensor. So on Strategy::host() and dense(), such
/// a table has slots from the start, even if the user trains it with an optimizer of
/// their own. Other tables have slots after make_optimizer(layer). A copy of the layer
/// has its own slots.
/// Source:  upstream's slot_variable_creation_fn.
class SlotCreation : public NamedFunction<at::Tensor(const SlotRequest&)> {
 public:
  using NamedFunction::NamedFunction;

  /// The function's tensor, checked.
  /// Errors:  c10::ValueError for a result of another shape, dtype or device,
  ///          or when the function is missing after reading from JSON.
  at::Tensor create(const SlotRequest& request) const;

  bool operator==(const SlotCreation&) const = default;
};

}  // namespace tessera::optim
