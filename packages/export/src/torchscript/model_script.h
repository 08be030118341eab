// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/trace/traced_model.h"

#include <tessera/export/exported_model.h>

#include <torch/csrc/jit/api/module.h>

namespace tessera::exporting {

/// Writes the model in TorchScript: its tree of modules, compute(), which the tracer
/// recorded, and forward(), which takes features by their paths.
/// Errors:  those of TracedModel::find_layers().
torch::jit::Module script_model(
    TracedModel& traced,
    const detail::ExportedModel& model,
    const ExportExample& example);

}  // namespace tessera::exporting
