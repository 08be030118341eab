// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense_parameters.h>

#include <tessera/engine/table_module.h>
#include <tessera/layers/table_parts.h>

#include <set>

namespace tessera {

std::vector<at::Tensor> dense_parameters(const torch::nn::Module& model) {
  std::set<const TableModule*> small_tables;
  model.apply([&](const torch::nn::Module& part) {
    if (const auto* parts = TableParts::of(part)) {
      small_tables.insert(parts->small_tables());
    }
  });
  std::set<const at::TensorImpl*> seen;
  model.apply([&](const torch::nn::Module& part) {
    const auto* tables = TableModule::of(part);
    if (tables != nullptr && !small_tables.contains(tables)) {
      for (const at::Tensor& parameter : part.parameters()) {
        seen.insert(parameter.unsafeGetTensorImpl());
      }
    }
  });
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : model.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      parameters.push_back(parameter);
    }
  }
  return parameters;
}

}  // namespace tessera
