// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/activation.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"
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

struct NamedActivation {
  const char* name;
  at::Tensor (*apply)(const at::Tensor&);
};

// In the order of the enum.
constexpr NamedActivation kActivations[] = {
    {"linear", [](const at::Tensor& x) { return x; }},
    {"elu", [](const at::Tensor& x) { return at::elu(x); }},
    {"exponential", [](const at::Tensor& x) { return at::exp(x); }},
    {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
    {"mish", [](const at::Tensor& x) { return at::mish(x); }},
    {"relu", [](const at::Tensor& x) { return at::relu(x); }},
    {"selu", [](const at::Tensor& x) { return at::selu(x); }},
    {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }},
    {"silu", [](const at::Tensor& x) { return at::silu(x); }},
    {"softmax", [](const at::Tensor& x) { return at::softmax(x, -1); }},
    {"softplus", [](const at::Tensor& x) { return at::softplus(x); }},
    {"softsign", [](const at::Tensor& x) { return x / (x.abs() + 1); }},
    {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
};
static_assert(
    std::size(kActivations) == static_cast<size_t>(Activation::kTanh) + 1);

}  // namespace

std::string to_string(Activation activation) {
  return kActivations[static_cast<size_t>(activation)].name;
}

Activation activation_from_string(std::string_view name) {
  for (size_t i = 0; i < std::size(kActivations); ++i) {
    if (name == kActivations[i].name) {
      return static_cast<Activation>(i);
    }
  }
  TESSERA_CHECK_VALUE(
      name == "swish",
      "an activation must be one of {}, but got '{}'.",
      join_names(kActivations, &NamedActivation::name),
      shorten(name));
  return Activation::kSilu;
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  const auto index = static_cast<size_t>(activation);
  TESSERA_CHECK_VALUE(
      index < std::size(kActivations),
      "[activate] expected one of the values of Activation, but got {}. Use a named value such as Activation::kRelu.",
      static_cast<int>(activation));
  return kActivations[index].apply(x);
}

}  // namespace tessera
