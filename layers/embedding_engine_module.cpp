// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/embedding_engine_module.h>

#include "layers/table_summary.h"
#include "serialization/checkpoint_reader.h"
#include "serialization/checkpoint_writer.h"
#include "src/common/check.h"
#include "src/engine/engine_access.h"

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
  return summary_of(state(), "EmbeddingEngine");
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

int64_t EmbeddingEngineModuleImpl::iterations() const {
  return EmbeddingEngine::iterations();
}

EmbeddingTables EmbeddingEngineModuleImpl::embedding_tables() const {
  return EmbeddingEngine::embedding_tables();
}

void EmbeddingEngineModuleImpl::update_embedding_table(
    const std::string& name,
    const at::Tensor& values) {
  EmbeddingEngine::update_embedding_table(name, values);
}

at::Tensor EmbeddingEngineModuleImpl::read_rows(
    const std::string& name,
    int64_t begin,
    int64_t end) const {
  return EmbeddingEngine::read_rows(name, begin, end);
}

const Nest<FeatureConfig>& EmbeddingEngineModuleImpl::feature_configs() const {
  return options().features;
}

Strategy EmbeddingEngineModuleImpl::strategy() const {
  return Strategy::fused();
}

const EmbeddingState& EmbeddingEngineModuleImpl::state() const {
  return EngineAccess::state(*this);
}

void EmbeddingEngineModuleImpl::read_state(
    c10::function_ref<void(const EmbeddingState&)> read) const {
  EngineAccess::read(*this, read);
}

void EmbeddingEngineModuleImpl::wait_for_lookups() const {
  read_state([](const EmbeddingState&) {});
}

void EmbeddingEngineModuleImpl::save_tables(
    const std::string& directory,
    const CheckpointOptions& options,
    const std::string& where) {
  Disk disk(where);
  EngineAccess::change(*this, [&](EmbeddingState& state) {
    tessera::save_checkpoint(
        state, EmbeddingEngine::options().features, directory, options, disk);
  });
}

void EmbeddingEngineModuleImpl::load_tables(
    const std::string& directory,
    const LoadOptions& options,
    const std::string& where) {
  EngineAccess::change(*this, [&](EmbeddingState& state) {
    tessera::load_checkpoint(state, directory, options, where);
  });
}

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
