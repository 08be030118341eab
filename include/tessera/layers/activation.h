// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace tessera {

/// Elementwise functions by the names that Keras has for them; softmax is over
/// the last dimension, gelu the exact one, elu has alpha 1.
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

/// "linear", "elu", ...
std::string to_string(Activation activation);

/// "swish" is "silu", too.
/// Errors:  c10::ValueError listing the choices.
Activation activation_from_string(std::string_view name);

/// Shapes:  x [batch, ..., dim], and the result.
at::Tensor activate(Activation activation, const at::Tensor& x);

/// Its name.
template <>
struct JsonValue<Activation> {
  static Json write(Activation value);
  static Activation read(const Json& json, const std::string& where);
};

}  // namespace tessera
