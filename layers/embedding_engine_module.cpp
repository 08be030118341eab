// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/embedding_engine_module.h>

#include "layers/table_module.h"
#include "src/common/check.h"

#include <ostream>
#include <utility>

namespace tessera {

namespace {

constexpr const char* kEngineModule = "tessera::EmbeddingEngineModule";

}  // namespace

EmbeddingEngineModuleImpl::EmbeddingEngineModuleImpl(
    EmbeddingEngineOptions options)
    : torch::nn::Module(kEngineModule), EmbeddingEngine(std::move(options)) {}

EmbeddingEngineModuleImpl::EmbeddingEngineModuleImpl(
    const EmbeddingEngineModuleImpl& source,
    Copy copy)
    : torch::nn::Module(kEngineModule), EmbeddingEngine(source, copy) {
  train(source.is_training());
}

std::string EmbeddingEngineModuleImpl::summary() const {
  return summary_of(*TableModule::of(*this)->state, "EmbeddingEngine");
}

void EmbeddingEngineModuleImpl::pretty_print(std::ostream& stream) const {
  stream << kEngineModule << "(\n" << summary() << ")";
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
  const auto* source = dynamic_cast<const EmbeddingEngineModuleImpl*>(&other);
  TESSERA_CHECK(
      source != nullptr,
      "[EmbeddingEngineModule::clone] expected to copy an EmbeddingEngineModule, but got {}. Let the constructor and the reset() of the model register the same modules.",
      other.name());
  copy_from(*source);
  train(source->is_training());
}

void EmbeddingEngineModuleImpl::to(
    torch::Device /*device*/,
    torch::Dtype /*dtype*/,
    bool /*non_blocking*/) {}

void EmbeddingEngineModuleImpl::to(
    torch::Dtype /*dtype*/,
    bool /*non_blocking*/) {}

void EmbeddingEngineModuleImpl::to(
    torch::Device /*device*/,
    bool /*non_blocking*/) {}

void EmbeddingEngineModuleImpl::save(
    torch::serialize::OutputArchive& archive) const {
  EmbeddingEngine::save(archive);
}

void EmbeddingEngineModuleImpl::load(torch::serialize::InputArchive& archive) {
  EmbeddingEngine::load(archive);
}

void EmbeddingEngineModuleImpl::load(
    torch::serialize::InputArchive& archive,
    const LoadOptions& options) {
  EmbeddingEngine::load(archive, options);
}

}  // namespace tessera
