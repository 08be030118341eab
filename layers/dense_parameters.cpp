// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense_parameters.h>

#include <tessera/engine/table_module.h>
#include <tessera/layers/partial_tpu_embedding.h>

#include <set>

namespace tessera {

std::vector<at::Tensor> dense_parameters(const torch::nn::Module& model) {
  std::set<const TableModule*> small_tables;
  model.apply([&](const torch::nn::Module& part) {
    const auto* halves = dynamic_cast<const PartialTPUEmbeddingImpl*>(&part);
    if (halves != nullptr && !halves->small_embedding().is_empty()) {
      small_tables.insert(halves->small_embedding().get());
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
