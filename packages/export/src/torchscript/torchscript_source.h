// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/trace/exported_layer.h"

#include <tessera/export/exported_model.h>

#include <set>
#include <string>

namespace tessera::exporting {

/// The TorchScript source of an exported layer's methods: forward(), and a method
/// `feature_<index>` for each exported feature.
std::string embedding_source(const ExportedLayer& layer);

/// The TorchScript source of an exported model's forward(features, weights, input_0,
/// ...), which passes the tensors of its dicts to compute().
std::string forward_source(
    const detail::ExportedModel& model,
    const ExportExample& example);

/// A valid attribute name that is made from `name` and is not in `taken`. Characters that
/// TorchScript can't read back are replaced.
std::string attribute_name(
    const std::string& name,
    const std::set<std::string>& taken);

}  // namespace tessera::exporting
