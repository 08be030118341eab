// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense_parameters.h>

#include <tessera/engine/table_module.h>
#include <tessera/layers/partial_tpu_embedding.h>

#include <set>

namespace tessera {

std::vector<at::Tensor> dense_parameters(const torch::nn::Module& model) {
  std::set<const torch::nn::Module*> small_tables;
  model.apply([&](const torch::nn::Module& part) {
    const auto* partial = dynamic_cast<const PartialTPUEmbeddingImpl*>(&part);
    if (partial != nullptr && !partial->small_embedding().is_empty()) {
      small_tables.insert(partial->small_embedding().get());
    }
  });
  std::set<const at::TensorImpl*> seen;
  model.apply([&](const torch::nn::Module& part) {
    if (TableModule::of(part) != nullptr && !small_tables.contains(&part)) {
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
