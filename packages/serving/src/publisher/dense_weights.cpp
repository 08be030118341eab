// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/dense_weights.h"

#include <tessera/common/shorten.h>
#include <tessera/layers/layer.h>

#include "packages/serving/src/publisher/dense_dtype.h"
#include "packages/serving/src/publisher/publish_options.h"
#include "src/common/check.h"

#include <memory>
#include <string>

namespace tessera::serving {

DenseWeights dense_weights(
    const torch::nn::Module& model,
    const std::vector<Part>& parts) {
  std::vector<std::shared_ptr<torch::nn::Module>> layers;
  for (const Part& part : parts) {
    layers.push_back(part.module);
  }
  return training::dense_of(model, layers);
}

int64_t dense_bytes(const DenseWeights& weights) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : weights) {
    TESSERA_CHECK_VALUE(
        tensor.defined() && !tessera::detail::is_unsized(tensor),
        "{} the layer of '{}' is not built. Call forward() or build() of the model before you publish it.",
        kPublisher,
        shorten(name));
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

std::vector<DenseContent> dense_content(const DenseWeights& weights) {
  std::vector<DenseContent> content;
  for (const auto& [name, tensor] : weights) {
    const at::Tensor values = tensor.detach().cpu().contiguous();
    content.push_back(
        {.file =
             {.name = name,
              .dtype = dense_dtype_name(values.scalar_type()),
              .shape = values.sizes().vec()},
         .values = std::string(
             static_cast<const char*>(values.const_data_ptr()),
             values.nbytes())});
  }
  return content;
}

}  // namespace tessera::serving
