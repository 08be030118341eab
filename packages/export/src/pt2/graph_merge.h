// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/graph.h"
#include "packages/export/src/pt2/size_solver.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tessera::exporting {

/// The record of a model at one of SizeSolver::points().
struct RecordedGraph {
  pt2::Graph graph = {};
  std::vector<pt2::Weight> weights = {};
  std::vector<at::Tensor> inputs = {};
};

/// An integer tensor whose first element is a symbol.
struct ValueSource {
  size_t symbol = 0;
  std::string input = {};
  at::ScalarType dtype = at::kLong;
};

/// Makes one graph for batches of any size from records of the same model at all points.
/// Runs each record to see the sizes of its tensors. A size or an integer that differs
/// between the points becomes a polynomial of the symbols. The graph computes the symbols
/// from the sizes of its inputs. It reads a symbol that is in none of these sizes from the
/// first of `value_sources` that has this symbol. A size of an input that is a sum gets a
/// symbol of its own, and the graph checks it. `descriptions` says what each symbol is.
/// Errors:  c10::ValueError beginning with `where` that names the node, if the records
///          differ in anything but sizes, or if a size is no polynomial.
pt2::Graph merge_graphs(
    const std::vector<RecordedGraph>& records,
    SizeSolver& solver,
    const std::vector<int64_t>& hints,
    const std::vector<ValueSource>& value_sources,
    const std::vector<std::string>& descriptions,
    const std::string& where);

}  // namespace tessera::exporting
