// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/export_torchscript.h>

#include "layers/mode_guard.h"
#include "packages/export/src/torchscript/model_script.h"
#include "packages/export/src/torchscript/torchscript_module.h"
#include "packages/export/src/trace/classic_locale.h"
#include "packages/export/src/trace/example_batch.h"
#include "packages/export/src/trace/exported_layer.h"
#include "packages/export/src/trace/traced_model.h"
#include "packages/export/src/trace/verification.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

namespace tessera {

namespace {

namespace jit = torch::jit;

constexpr const char* kWhere = "[export_torchscript]";

// Compares the file with the layer. TorchScript's optimizations are off: they take 40 ms
// per feature and do not make these few calls faster.
void check_loaded(const exporting::ExportedLayer& layer, jit::Module loaded) {
  const jit::GraphOptimizerEnabledGuard no_optimizations(false);
  exporting::check_embedding(
      layer,
      [&](const std::string& path,
          const Feature& feature,
          const at::Tensor& weights) {
        return exporting::run_embedding(loaded, path, feature, weights);
      });
}

void write_embedding(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& structure,
    const std::string& path,
    const ExportOptions& options) {
  AtomicFile file(path, kWhere);
  const ClassicLocale locale;  // LibTorch prints TorchScript with streams
  const at::NoGradGuard no_grad;
  const exporting::ExportedLayer layer = exporting::export_layer(
      state, structure, options, exporting::Conversion::kNow, kWhere);
  const jit::Module script = exporting::script_layer(layer);
  exporting::detach_tensors(script);
  check_loaded(layer, exporting::save_and_load(script, file));
  file.commit();
}

}  // namespace

void detail::export_torchscript(
    const TableModule* tables,
    const std::string& path,
    const ExportOptions& options) {
  exporting::read_tables(tables, kWhere, [&](const EmbeddingState& state) {
    write_embedding(state, tables->feature_configs(), path, options);
  });
}

void detail::export_torchscript(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options) {
  AtomicFile file(path, kWhere);
  const ClassicLocale locale;  // LibTorch prints TorchScript with streams
  const at::NoGradGuard no_grad;
  const ExportExample parts =
      exporting::model_parts(model, example, options, kWhere);
  const ModeGuard modes(model.module);
  modes.eval();
  exporting::TracedModel traced(
      model, options, exporting::Conversion::kNow, kWhere);
  jit::Module loaded = exporting::save_and_load(
      exporting::script_model(traced, model, parts), file);
  exporting::check_model(
      model.module,
      parts,
      [&](const ExportExample& batch) { return traced.outputs(batch); },
      [&](const ExportExample& batch) {
        return exporting::run_model(loaded, model, batch);
      },
      kWhere);
  file.commit();
}

}  // namespace tessera
