// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/graph.h"
#include "packages/export/src/trace/record_graph.h"

#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace tessera::exporting {

/// Converts a graph that LibTorch's tracer recorded, node by node. The graph's inputs are
/// the weights, then the arguments of a call. Tensors that the record holds as constants are
/// appended to `weights` as buffers. Sizes and symbols stay empty, and all integers are
/// constants. The last outputs are the conditions of `checks`, which become calls of
/// `aten::_assert_async`.
/// Errors:  c10::ValueError beginning with `where` that names the node, for a node that is
///          not a functional or in-place operator of LibTorch.
pt2::Graph convert_graph(
    torch::jit::Graph& recorded,
    std::vector<pt2::Weight>& weights,
    const std::vector<std::string>& inputs,
    const Checks& checks,
    const std::string& where);

/// Makes a Python identifier from `text` that is not in `taken`, and adds it to `taken`.
std::string identifier(
    const std::string& text,
    std::unordered_set<std::string>& taken);

}  // namespace tessera::exporting
