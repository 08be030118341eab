// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/polynomial.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// The graph of a `.pt2` file, in the terms of torch.export's schema.
namespace tessera::pt2 {

/// A vector with convert(value) for each of the values. `convert` may be a member.
template <class Range, class Convert>
auto converted(const Range& values, const Convert& convert) {
  using Result = std::invoke_result_t<Convert, decltype(*std::begin(values))>;
  std::vector<std::decay_t<Result>> results;
  results.reserve(std::size(values));
  for (const auto& value : values) {
    results.push_back(std::invoke(convert, value));
  }
  return results;
}

/// A tensor of the graph, by its name.
struct TensorName {
  std::string name = {};
  bool operator==(const TensorName&) const = default;
};

/// An integer of the graph, by its name. A node computes it.
struct IntName {
  std::string name = {};
  bool operator==(const IntName&) const = default;
};

struct None {
  bool operator==(const None&) const = default;
};

/// An integer that is a constant or that a node computes.
using Int = std::variant<int64_t, IntName>;

/// An argument of a node.
using Argument = std::variant<
    None,
    TensorName,
    std::vector<TensorName>,
    std::vector<std::optional<TensorName>>,
    Int,
    std::vector<Int>,
    double,
    std::vector<double>,
    bool,
    std::vector<bool>,
    std::string,
    at::ScalarType,
    at::MemoryFormat,
    at::Layout,
    at::Device>;

/// A result of a node: a tensor, a list of tensors, or an integer.
using Output = std::variant<TensorName, std::vector<TensorName>, IntName>;

/// An argument with its name in the schema of the operator.
struct NamedArgument {
  std::string name = {};
  Argument value = {};
  /// Whether Python passes the argument by its name.
  bool is_keyword = false;
};

/// A call of an operator.
struct Node {
  /// "torch.ops.aten.add.Tensor", or "_operator.add" for integers.
  std::string target = {};
  std::vector<NamedArgument> arguments = {};
  std::vector<Output> outputs = {};
};

/// The type and the sizes of a tensor of the graph.
struct TensorMeta {
  at::ScalarType dtype = at::kFloat;
  std::vector<Polynomial> sizes = {};
  std::vector<Polynomial> strides = {};
  Polynomial storage_offset = {};
};

/// A tensor that the file holds.
struct Weight {
  /// Its name in the state_dict.
  std::string name = {};
  at::Tensor tensor = {};
  bool is_parameter = false;
  /// Makes the tensor that is written. `tensor` is then a placeholder of the same sizes
  /// and dtype. Empty: `tensor` itself is written.
  std::function<at::Tensor()> make = {};
};

/// A whole graph. The inputs are all weights, then the arguments of a call.
struct Graph {
  /// The names of the weights in the graph, in the order of the weights.
  std::vector<std::string> weights = {};
  /// The names of the arguments.
  std::vector<std::string> inputs = {};
  std::vector<Node> nodes = {};
  std::vector<std::string> outputs = {};
  /// True if a call returns a list. If not, the only output is returned alone.
  bool returns_list = false;

  /// The values of the symbols in the example.
  std::vector<int64_t> symbols = {};
  /// Whether each symbol is read from values of an input, not from a size.
  std::vector<bool> is_value = {};
  std::map<std::string, TensorMeta> tensors = {};
  std::map<std::string, Polynomial> integers = {};
};

}  // namespace tessera::pt2
