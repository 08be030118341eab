// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/exported_model.h>
#include <tessera/export/pt2_program.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera::exporting {

/// The path and the part of each of ExportExample::inputs, as in Pt2Value.
using InputNames = std::vector<std::pair<std::string, std::string>>;

/// The names, paths and parts of the tensors of flatten(example), without dtypes and
/// shapes. If `input_names` is empty, the inputs are "input_0", "input_1", ...
std::vector<Pt2Value> describe_inputs(
    const ExportExample& example,
    const InputNames& input_names);

}  // namespace tessera::exporting
