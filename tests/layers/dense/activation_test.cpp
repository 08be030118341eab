// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/json_value.h>
#include <tessera/layers/dense/activation.h>

#include "tests/layers/gradient_check.h"

namespace tessera::test::activation_test {

// LayersGoldenTest.Cross compares the values of all activations with Keras.
TEST(ActivationTest, NamesRoundTripAndGradientsMatchFiniteDifferences) {
  for (int i = 0; i <= static_cast<int>(Activation::kTanh); ++i) {
    const auto activation = static_cast<Activation>(i);
    SCOPED_TRACE(to_string(activation));
    EXPECT_EQ(activation_from_string(to_string(activation)), activation);
    const Json json = JsonValue<Activation>::write(activation);
    EXPECT_EQ(JsonValue<Activation>::read(json, "x"), activation);
    const at::Tensor x = at::randn({3, 4}, at::kDouble).requires_grad_();
    expect_gradients([&] { return activate(activation, x); }, {x});
  }
  EXPECT_EQ(activation_from_string("swish"), Activation::kSilu);
}

TEST(ActivationTest, RefusesUnknownNames) {
  EXPECT_VALUE_ERROR(
      activation_from_string("rellu"),
      "an activation must be one of linear, elu, exponential, gelu, mish, relu, "
      "selu, sigmoid, silu, softmax, softplus, softsign, tanh, but got "
      "'rellu'.");
  EXPECT_VALUE_ERROR(
      JsonValue<Activation>::read("", "options.preactivation"),
      "[options.preactivation] an activation must be one of");
  EXPECT_VALUE_ERROR(
      activate(static_cast<Activation>(99), at::randn({1})),
      "[activate] expected one of the values of Activation, but got 99. Use a "
      "named value such as Activation::kRelu.");
}

}  // namespace tessera::test::activation_test
