// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/graph.h"
#include "packages/export/src/trace/traced_model.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace tessera::exporting {

/// The parameters and buffers of a model by their names in its tree of modules. In place
/// of the parameters of a layer with tables, the list has the tables as the file holds
/// them. A tensor that several modules share has its first name.
/// Errors:  c10::ValueError beginning with `where`, for a tensor that is not dense or not on
///          the CPU.
std::vector<pt2::Weight> named_weights(
    const torch::nn::Module& model,
    const TracedModel::Layers& layers,
    const std::string& where);

/// Adds the tensors of a layer's table. Their names begin with `prefix`. A table without
/// rows adds nothing. Each placeholder gets a function that makes it. The functions are
/// called in order and once, so only one converted table is in memory.
void add_table_weights(
    const ExportedLayer& layer,
    size_t table,
    const std::string& prefix,
    std::vector<pt2::Weight>& weights);

}  // namespace tessera::exporting
