// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/graph.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::pt2 {

/// Runs a graph through LibTorch's dispatcher, one operator after the other. Several
/// threads may call run() at the same time. LibTorch declares a runner of its own in
/// torch/nativert/ModelRunnerHandle.h, but libtorch_cpu.so of the wheel has no symbol of it.
class GraphRunner {
 public:
  /// Finds the operators and the values of all nodes.
  /// Errors:  c10::ValueError beginning with `where`, for an operator that LibTorch does
  ///          not have, arguments that do not fit its schema, a value that is used before
  ///          it is computed, and a name that is used twice.
  GraphRunner(
      const Graph& graph,
      const std::vector<Weight>& weights,
      std::string where);
  ~GraphRunner();
  GraphRunner(GraphRunner&&) noexcept;
  GraphRunner& operator=(GraphRunner&&) noexcept;

  /// A function that run() calls with the name and the value of each tensor, as soon as it
  /// is known.
  using Observer =
      std::function<void(const std::string& name, const at::Tensor& tensor)>;

  /// The outputs for these inputs, in the order of the graph.
  /// Errors:  c10::ValueError beginning with `where`, for another number of inputs, and
  ///          with the text of the check that refuses the inputs; c10::Error with the
  ///          node that failed.
  std::vector<at::Tensor> run(
      const std::vector<at::Tensor>& inputs,
      const Observer& observer = {}) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::pt2
