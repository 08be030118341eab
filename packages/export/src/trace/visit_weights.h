// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/table_module.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

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

/// The modules with tables in a model, each once, with the prefix of their table and
/// feature names in a published version. The prefix is the path of the module and a dot, or
/// empty for the only module.
template <class Module>
auto tables_and_prefixes(Module& model) {
  using Tables = decltype(TableModule::of(model));
  std::vector<std::pair<Tables, std::string>> result;
  visit_weights(
      model,
      "",
      [](const std::string&, const at::Tensor&, WeightKind) {},
      [&](auto& tables, const std::string& prefix) {
        const bool is_new =
            std::none_of(result.begin(), result.end(), [&](const auto& known) {
              return known.first == &tables;
            });
        if (is_new) {
          result.emplace_back(&tables, prefix);
        }
      });
  if (result.size() == 1) {
    result.front().second.clear();
  }
  return result;
}

}  // namespace tessera
