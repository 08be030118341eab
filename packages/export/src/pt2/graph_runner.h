// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/graph.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::pt2 {

/// A function that gets the name and the value of each tensor, once it is computed.
using Observer =
    std::function<void(const std::string& name, const at::Tensor& tensor)>;

/// Computes the outputs of a graph for these inputs, in the order of the graph. Several
/// threads may call it at the same time. `observer` may be empty.
/// Errors:  c10::ValueError beginning with `where`, for another number of inputs, and
///          with the text of the check that refuses the inputs; c10::Error with the
///          node that failed.
using GraphFunction = std::function<std::vector<at::Tensor>(
    const std::vector<at::Tensor>& inputs,
    const Observer& observer)>;

/// Returns a function that runs the graph through LibTorch's dispatcher, one operator after
/// the other. LibTorch declares a runner of its own in torch/nativert/ModelRunnerHandle.h,
/// but the wheel's libtorch_cpu.so does not export it.
/// Errors:  c10::ValueError beginning with `where`, for an operator that LibTorch does
///          not have, arguments that do not fit its schema, a value that is used before
///          it is computed, and a name that is used twice.
GraphFunction make_function(
    const Graph& graph,
    const std::vector<Weight>& weights,
    const std::string& where);

}  // namespace tessera::pt2
