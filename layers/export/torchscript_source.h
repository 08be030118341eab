// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/export/exported_layer.h"

#include <tessera/layers/export_torchscript.h>

#include <set>
#include <string>

namespace tessera::exporting {

/// The methods of an exported layer in TorchScript: forward(), and feature_<index>() for
/// each exported feature.
std::string embedding_source(const ExportedLayer& layer);

/// forward(features, weights, input_0, ...) of an exported model, which takes its dicts
/// apart for compute().
std::string forward_source(
    const detail::ExportedModel& model,
    const ExportExample& example);

/// The name of an attribute: characters that TorchScript can't read back are replaced.
std::string attribute_name(
    const std::string& name,
    const std::set<std::string>& taken);

}  // namespace tessera::exporting
