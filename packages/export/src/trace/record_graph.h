// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::exporting {

/// A function of tensors that LibTorch's tracer can record.
using TensorFunction =
    std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

struct RecordOptions {
  /// If false, the graph returns the only output without a list.
  bool returns_list = false;
  /// The module whose tensors are attributes in the graph.
  torch::jit::Module* root = nullptr;
  /// The beginning of error messages.
  std::string where = {};
};

/// Records the operators that `function` calls on `inputs`.
/// Errors:  c10::ValueError beginning with `options.where`, for what can't be recorded.
std::shared_ptr<torch::jit::Graph> record_graph(
    const std::vector<at::Tensor>& inputs,
    const TensorFunction& function,
    const RecordOptions& options);

/// A condition that a batch must meet: a bool tensor with one element.
struct Check {
  at::Tensor condition = {};
  std::string message = {};
};
using Checks = std::vector<Check>;

/// Like record_graph(), but refuses a function that reads values of tensors, or that fills
/// tensors with values that C++ computes. The inputs of the graph are the weights, which
/// `function` uses by itself, and the arguments, which it gets. The graph returns a list:
/// the outputs, then the conditions that `function` has appended to `checks`. Conditions
/// are outputs because the tracer drops operators that return nothing, such as a check.
std::shared_ptr<torch::jit::Graph> record_operators(
    const std::vector<at::Tensor>& weights,
    const std::vector<at::Tensor>& arguments,
    const TensorFunction& function,
    const Checks& checks,
    const std::string& where);

/// Refuses a graph that holds an empty tensor which no operator fills.
/// Errors:  c10::ValueError beginning with `where`.
void check_filled(const torch::jit::Graph& graph, const std::string& where);

}  // namespace tessera::exporting
