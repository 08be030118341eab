// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/embedding_engine_module.h>

#include "layers/clone_source.h"

#include <ostream>
#include <utility>

namespace tessera {

EmbeddingEngineModuleImpl::EmbeddingEngineModuleImpl(
    EmbeddingEngineOptions options)
    : torch::nn::Module("tessera::EmbeddingEngineModule"),
      EmbeddingEngine(std::move(options)) {}

EmbeddingEngineModuleImpl::EmbeddingEngineModuleImpl(
    const EmbeddingEngineModuleImpl& source,
    Copy copy)
    : torch::nn::Module(source.name()), EmbeddingEngine(source, copy) {
  train(source.is_training());
}

void EmbeddingEngineModuleImpl::pretty_print(std::ostream& stream) const {
  stream << name() << "(\n" << summary() << ")";
}

std::shared_ptr<torch::nn::Module> EmbeddingEngineModuleImpl::clone(
    const std::optional<torch::Device>& /*device*/) const {
  return std::shared_ptr<EmbeddingEngineModuleImpl>(
      new EmbeddingEngineModuleImpl(*this, Copy{}));
}

// The clone() of a parent module calls this function on the new copy.
void EmbeddingEngineModuleImpl::clone_(
    torch::nn::Module& other,
    const std::optional<torch::Device>& /*device*/) {
  const auto& source =
      clone_source<EmbeddingEngineModuleImpl>(other, "EmbeddingEngineModule");
  copy_from(source);
  train(source.is_training());
}

}  // namespace tessera
