// SPDX-License-Identifier: Apache-2.0
// Only torchscript_* and model_script write TorchScript, which PyTorch has deprecated. The
// other files of this folder work for any format.
#include <tessera/export/export_torchscript.h>

#include "layers/mode_guard.h"
#include "packages/export/src/classic_locale.h"
#include "packages/export/src/dense_part.h"
#include "packages/export/src/example_batch.h"
#include "packages/export/src/export_options.h"
#include "packages/export/src/exported_layer.h"
#include "packages/export/src/input_names.h"
#include "packages/export/src/model_script.h"
#include "packages/export/src/resized_examples.h"
#include "packages/export/src/torchscript_module.h"
#include "packages/export/src/torchscript_program.h"
#include "packages/export/src/traced_model.h"
#include "packages/export/src/verification.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <array>
#include <optional>
#include <utility>

namespace tessera {

namespace {

namespace jit = torch::jit;

constexpr const char* kWhere = "[export_torchscript]";
constexpr const char* kDensePartWhere = "[export_dense_torchscript]";

// Names that the code of a traced forward() uses, so no argument may have them. LibTorch
// itself avoids Python's keywords.
constexpr auto kTakenNames = std::to_array<const char*>(
    {"annotate",
     "bool",
     "complex",
     "float",
     "int",
     "isinstance",
     "len",
     "list",
     "print",
     "range",
     "self",
     "str",
     "torch",
     "tuple",
     "unchecked_cast",
     "unchecked_unwrap_optional",
     "uninitialized"});

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

// The sizes of a tensor. Those that differ between two numbers of candidates are unknown.
std::vector<std::optional<int64_t>> common_sizes(
    const at::Tensor& a,
    const at::Tensor& b) {
  TESSERA_CHECK_VALUE(
      a.dim() == b.dim(),
      "{} expected outputs with the same number of dimensions for any number of candidates, but an output has the shape {} or {}. Keep a dimension of size 1 in forward().",
      kDensePartWhere,
      a.sizes(),
      b.sizes());
  std::vector<std::optional<int64_t>> sizes;
  for (int64_t axis = 0; axis < a.dim(); ++axis) {
    sizes.push_back(
        a.size(axis) == b.size(axis) ? std::make_optional(a.size(axis))
                                     : std::nullopt);
  }
  return sizes;
}

// The batch size of a dense part is the number of candidates.
Pt2Signature describe_dense_part(
    const exporting::DensePart& dense,
    int64_t candidates,
    exporting::TracedModel& traced) {
  const ExportExample& example = dense.example();
  const ExportExample other = exporting::with_batch_size(
      example, candidates, candidates + 6, kDensePartWhere);
  Pt2Signature signature{
      .inputs = exporting::describe_inputs(
          example, dense.inputs(), {kTakenNames.begin(), kTakenNames.end()})};
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    signature.inputs[i].dtype = example.inputs[i].scalar_type();
    signature.inputs[i].shape =
        common_sizes(example.inputs[i], other.inputs[i]);
  }
  const std::vector<at::Tensor> outputs = traced.outputs(example);
  const std::vector<at::Tensor> others = traced.outputs(other);
  TESSERA_CHECK_VALUE(
      outputs.size() == others.size(),
      "{} expected the same number of outputs for any number of candidates, but forward() gives {} or {}. Return tensors with one row per candidate.",
      kDensePartWhere,
      outputs.size(),
      others.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string name = fmt::format("output_{}", i);
    signature.outputs.push_back(
        {.name = name,
         .path = name,
         .dtype = outputs[i].scalar_type(),
         .shape = common_sizes(outputs[i], others[i])});
  }
  return signature;
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
  const int64_t batch_size = exporting::batch_size_of(parts.features, kWhere);
  const ModeGuard modes(model.module);
  modes.eval();
  exporting::TracedModel traced(
      model, options, exporting::Conversion::kNow, kWhere);
  jit::Module loaded = exporting::save_and_load(
      exporting::script_model(traced, model, parts), file);
  exporting::check_model(
      model.module,
      parts,
      batch_size,
      [&](const ExportExample& batch) { return traced.outputs(batch); },
      [&](const ExportExample& batch) {
        return exporting::run_model(loaded, model, batch);
      },
      kWhere);
  file.commit();
}

Pt2Signature detail::export_dense_torchscript(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const std::vector<std::string>& input_names) {
  AtomicFile file(path, kDensePartWhere);
  const ClassicLocale locale;  // LibTorch prints TorchScript with streams
  const at::NoGradGuard no_grad;
  const ModeGuard modes(model.module);
  modes.eval();
  const exporting::DensePart dense(
      model, example, input_names, kDensePartWhere);
  const ExportOptions options;
  exporting::TracedModel traced(
      dense.model(), options, exporting::Conversion::kNow, kDensePartWhere);
  const int64_t candidates =
      exporting::ResizedExamples(dense.example(), kDensePartWhere).sizes()[0];
  Pt2Signature signature = describe_dense_part(dense, candidates, traced);
  std::vector<std::string> names;
  for (const Pt2Value& input : signature.inputs) {
    names.push_back(input.name);
  }
  const exporting::DenseScript script = exporting::script_dense_part(
      traced, dense.model(), dense.example(), names, kDensePartWhere);
  exporting::write_torchscript_program(
      file, script.module, signature, script.weights, kDensePartWhere);
  const exporting::TorchScriptProgram program(file.written_path());
  exporting::check_model(
      model.module,
      dense.example(),
      candidates,
      [&](const ExportExample& batch) { return traced.outputs(batch); },
      [&](const ExportExample& batch) { return program.run(batch.inputs); },
      kDensePartWhere);
  file.commit();
  return signature;
}

}  // namespace tessera
