// SPDX-License-Identifier: Apache-2.0
// Only torchscript_* and model_script write TorchScript, which PyTorch has deprecated. The
// other files of this folder work for any format.
#include <tessera/export/export_torchscript.h>

#include "layers/mode_guard.h"
#include "packages/export/src/classic_locale.h"
#include "packages/export/src/example_batch.h"
#include "packages/export/src/export_options.h"
#include "packages/export/src/exported_layer.h"
#include "packages/export/src/model_script.h"
#include "packages/export/src/torchscript_module.h"
#include "packages/export/src/traced_model.h"
#include "packages/export/src/verification.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/csrc/jit/resource_guard.h>

namespace tessera {

namespace {

namespace jit = torch::jit;

constexpr const char* kWhere = "[export_torchscript]";

// Compares the file with the layer. TorchScript's optimizations are off: they take 40 ms
// per feature and do not make these few calls faster.
void check_loaded(const exporting::ExportedLayer& layer, jit::Module loaded) {
  const bool was_optimized = jit::getGraphExecutorOptimize();
  jit::setGraphExecutorOptimize(false);
  const jit::ResourceGuard restore(
      [was_optimized] { jit::setGraphExecutorOptimize(was_optimized); });
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
  exporting::check_dtype(options, kWhere);
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
  exporting::check_model_example(model, example, options, kWhere);
  AtomicFile file(path, kWhere);
  const ClassicLocale locale;  // LibTorch prints TorchScript with streams
  const at::NoGradGuard no_grad;
  const ExportExample parts = exporting::to_parts(example, kWhere);
  exporting::check_unique(parts.features.paths(), kWhere);
  exporting::batch_size_of(parts.features, kWhere);
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
