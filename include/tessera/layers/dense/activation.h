// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_name.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace tessera {

/// Activation functions, with Keras's names. softmax is over the last dimension, gelu is
/// exact (no tanh approximation), and elu has alpha = 1.
/// Source:  tf.keras.activations.
enum class Activation {
  kLinear,
  kElu,
  kExponential,
  kGelu,
  kMish,
  kRelu,
  kSelu,
  kSigmoid,
  kSilu,
  kSoftmax,
  kSoftplus,
  kSoftsign,
  kTanh
};

/// The name of the activation, such as "linear".
std::string to_string(Activation activation);

/// The activation with this name. "swish" is another name for "silu".
/// Errors:  c10::ValueError listing the choices.
Activation activation_from_string(std::string_view name);

/// Shapes:  x and the result [batch, ..., dim].
at::Tensor activate(Activation activation, const at::Tensor& x);

/// In JSON, an activation is its name.
template <>
struct JsonValue<Activation> : detail::JsonName<activation_from_string> {};

}  // namespace tessera
