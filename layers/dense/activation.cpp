// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/activation.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/json_name.h"
#include "src/common/names.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/selu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tanh.h>

#include <cstddef>
#include <iterator>

namespace tessera {

namespace {

// In the order of the enum.
constexpr const char* kNames[] = {
    "linear",
    "elu",
    "exponential",
    "gelu",
    "mish",
    "relu",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "tanh"};
static_assert(std::size(kNames) == static_cast<size_t>(Activation::kTanh) + 1);

}  // namespace

std::string to_string(Activation activation) {
  return kNames[static_cast<size_t>(activation)];
}

Activation activation_from_string(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) {
      return static_cast<Activation>(i);
    }
  }
  TESSERA_CHECK_VALUE(
      name == "swish",
      "an activation must be one of {}, but got '{}'.",
      join_names(kNames),
      shorten(name));
  return Activation::kSilu;
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kLinear:
      return x;
    case Activation::kElu:
      return at::elu(x);
    case Activation::kExponential:
      return at::exp(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kMish:
      return at::mish(x);
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSelu:
      return at::selu(x);
    case Activation::kSigmoid:
      return at::sigmoid(x);
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kSoftmax:
      return at::softmax(x, -1);
    case Activation::kSoftplus:
      return at::softplus(x);
    case Activation::kSoftsign:
      return x / (x.abs() + 1);
    case Activation::kTanh:
      return at::tanh(x);
  }
  TESSERA_CHECK_VALUE(
      false,
      "[activate] expected one of the values of Activation, but got {}. Use a named value such as Activation::kRelu.",
      static_cast<int>(activation));
}

Json JsonValue<Activation>::write(Activation value) {
  return to_string(value);
}

Activation JsonValue<Activation>::read(
    const Json& json,
    const std::string& where) {
  return read_name(json, activation_from_string, where);
}

}  // namespace tessera
