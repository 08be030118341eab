// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/table_module.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

namespace tessera {

enum class WeightKind { kParameter, kBuffer };

/// Visits the weights of a model by the names that Python's state_dict() gives them:
/// use_tensor(name, tensor, kind) gets each parameter and buffer, which may be undefined.
/// For a layer with tables, use_tables(tables, prefix) is called instead. A weight that
/// several modules share is visited once for each of them.
template <class Module, class UseTensor, class UseTables>
void visit_weights(
    Module& module,
    const std::string& prefix,
    UseTensor&& use_tensor,
    UseTables&& use_tables) {
  if (auto* tables = TableModule::of(module)) {
    use_tables(*tables, prefix);
    return;
  }
  for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
    use_tensor(prefix + entry.key(), entry.value(), WeightKind::kParameter);
  }
  for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
    use_tensor(prefix + entry.key(), entry.value(), WeightKind::kBuffer);
  }
  for (const auto& entry : module.named_children()) {
    Module& child = *entry.value();
    visit_weights(child, prefix + entry.key() + ".", use_tensor, use_tables);
  }
}

}  // namespace tessera
