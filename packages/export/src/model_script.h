// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/torchscript_program.h"
#include "packages/export/src/traced_model.h"

#include <tessera/export/export_torchscript.h>

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

namespace tessera::exporting {

/// Writes the model in TorchScript: its tree of modules, compute(), which the tracer
/// recorded, and forward(), which takes features by their paths.
/// Errors:  c10::ValueError beginning with "[export_torchscript]", for a model that looks
///          nothing up, or whose tables are in none of its submodules.
torch::jit::Module script_model(
    TracedModel& traced,
    const detail::ExportedModel& model,
    const ExportExample& example);

/// A module without tables, and its weights by the names that the model gives them.
struct DenseScript {
  torch::jit::Module module;
  std::vector<ScriptWeight> weights;
};

/// Writes the dense part of a model in TorchScript: its tree of modules, and forward(),
/// which the tracer recorded and whose arguments have these names.
/// Errors:  c10::ValueError beginning with `where`, for a model that can't be recorded or
///          that reads values of tensors.
DenseScript script_dense_part(
    TracedModel& traced,
    const detail::ExportedModel& dense,
    const ExportExample& example,
    const std::vector<std::string>& names,
    const std::string& where);

}  // namespace tessera::exporting
