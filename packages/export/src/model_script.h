// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/traced_model.h"

#include <tessera/export/export_torchscript.h>

#include <torch/csrc/jit/api/module.h>

namespace tessera::exporting {

/// Writes the model in TorchScript: its tree of modules, compute(), which the tracer
/// recorded, and forward(), which takes features by their paths.
/// Errors:  c10::ValueError beginning with "[export_torchscript]", for a model that looks
///          nothing up, or whose tables are in none of its submodules.
torch::jit::Module script_model(
    TracedModel& traced,
    const detail::ExportedModel& model,
    const ExportExample& example);

}  // namespace tessera::exporting
