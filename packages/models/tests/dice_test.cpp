// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/dice.h>

#include "tests/layers/gradient_check.h"

namespace tessera::test::dice_test {

at::Tensor buffer_of(const Dice& layer, const char* name) {
  return layer->named_buffers()[name].clone();
}

TEST(DiceTest, GradientsMatchFiniteDifferences) {
  Dice layer;
  const at::Tensor x = at::randn({5, 3}, at::kDouble).requires_grad_();
  layer->forward(x);
  const at::Tensor alpha = layer->named_parameters()["alpha"];
  {
    const at::NoGradGuard no_grad;
    alpha.copy_(at::randn({3}));
  }
  expect_gradients([&] { return layer->forward(x); }, {x, alpha});
}

TEST(DiceTest, AllDimensionsButTheLastAreRows) {
  Dice layer;
  Dice other;
  const at::Tensor x = at::randn({4, 5, 3});
  const at::Tensor result = layer->forward(x);
  EXPECT_EQ(result.sizes(), x.sizes());
  expect_close(result.flatten(0, 1), other->forward(x.flatten(0, 1)));
}

// Their variance would be 0 or NaN, and would stay in the running variance.
TEST(DiceTest, BatchesOfFewerThanTwoRowsUseTheRunningStatistics) {
  Dice layer;
  layer->forward(at::randn({8, 3}));
  const at::Tensor mean = buffer_of(layer, "running_mean");
  const at::Tensor variance = buffer_of(layer, "running_var");
  const at::Tensor row = at::randn({1, 3});
  const at::Tensor result = layer->forward(row);
  EXPECT_EQ(layer->forward(at::ones({0, 3})).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_TRUE(at::equal(buffer_of(layer, "running_mean"), mean));
  EXPECT_TRUE(at::equal(buffer_of(layer, "running_var"), variance));
  layer->eval();
  EXPECT_TRUE(at::equal(layer->forward(row), result));
}

TEST(DiceTest, EvalModeDoesNotChangeTheStatistics) {
  Dice layer;
  layer->forward(at::randn({8, 3}));
  const at::Tensor mean = buffer_of(layer, "running_mean");
  layer->eval();
  layer->forward(at::full({8, 3}, 100.0));
  EXPECT_TRUE(at::equal(buffer_of(layer, "running_mean"), mean));
}

// The running mean must not stop some rounding errors before the mean, because the running
// deviation becomes 0. x is then exactly at the rectified point.
TEST(DiceTest, AConstantColumnIsAtTheRectifiedPoint) {
  for (const double momentum : {0.02, 0.1, 1.0}) {
    SCOPED_TRACE(momentum);
    Dice layer(DiceOptions{.momentum = momentum});
    const at::Tensor x = at::full({4, 2}, 12345.678);
    for (int step = 0; step < 40 / momentum; ++step) {
      layer->forward(x);
    }
    expect_close(buffer_of(layer, "running_mean"), x[0], 0.0, 0.0);
    layer->eval();
    expect_close(layer->forward(x), 0.5 * x);
  }
}

TEST(DiceTest, CopiesHaveItsStatistics) {
  Dice layer;
  layer->forward(at::randn({4, 3}));
  Dice loaded;
  copy_by_archive(layer, loaded);
  for (const Dice& copy : {clone_of(layer), loaded}) {
    for (const char* name : {"running_mean", "running_var"}) {
      EXPECT_TRUE(at::equal(buffer_of(copy, name), buffer_of(layer, name)));
    }
  }
}

TEST(DiceTest, RefusesBadInput) {
  EXPECT_VALUE_ERROR(
      Dice(DiceOptions{.momentum = 1.5}),
      "[Dice] momentum must be in [0, 1], but got 1.5");
  EXPECT_VALUE_ERROR(
      Dice(DiceOptions{.epsilon = 0.0}),
      "[Dice] epsilon must be > 0 and finite, but got 0");
  Dice layer;
  EXPECT_VALUE_ERROR(
      layer->forward(at::ones({3})),
      "[Dice] expected an input [batch, ..., dim]");
  EXPECT_VALUE_ERROR(layer->forward(at::Tensor()), "expected a tensor");
  EXPECT_TYPE_ERROR(
      layer->forward(at::ones({2, 3}, at::kLong)),
      "expected a dense floating-point tensor");
  layer->forward(at::ones({2, 3}));
  EXPECT_VALUE_ERROR(
      layer->forward(at::ones({2, 4})),
      "[Dice] was built for inputs [batch, ..., 3], but got [2, 4]");
}

}  // namespace tessera::test::dice_test
