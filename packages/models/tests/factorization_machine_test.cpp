// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/factorization_machine.h>

#include "tests/test_util.h"

namespace tessera::test::factorization_machine_test {

// The sum over all pairs, one after the other.
at::Tensor sum_of_pairs(const at::Tensor& vectors) {
  at::Tensor sum = at::zeros({vectors.size(0)}, vectors.options());
  for (int64_t i = 0; i < vectors.size(1); ++i) {
    for (int64_t j = 0; j < i; ++j) {
      sum = sum + (vectors.select(1, i) * vectors.select(1, j)).sum(1);
    }
  }
  return sum.unsqueeze(1);
}

TEST(FactorizationMachineTest, SumsWeightsAndAllPairs) {
  const at::Tensor rows = at::randn({4, 6, 9}, at::kDouble);
  FactorizationMachine layer;
  expect_close(
      layer->forward(rows),
      rows.select(2, 0).sum(1, true) + sum_of_pairs(rows.narrow(2, 1, 8)),
      1e-12,
      1e-12);
  FactorizationMachine pairs(
      FactorizationMachineOptions{.use_first_order = false, .use_bias = false});
  expect_close(pairs->forward(rows), sum_of_pairs(rows), 1e-12, 1e-12);
  EXPECT_TRUE(pairs->parameters().empty());
}

TEST(FactorizationMachineTest, LeavesOfAnyNestAreFeatures) {
  const at::Tensor a = at::randn({3, 5});
  const at::Tensor b = at::randn({3, 2, 5});
  FactorizationMachine layer;
  expect_close(
      layer->forward({{"a", a}, {"more", Nest<at::Tensor>::list({b})}}),
      layer->forward(at::cat({a.unsqueeze(1), b}, 1)));
}

// A padded position is a row of zeros.
TEST(FactorizationMachineTest, ZerosAddNothing) {
  const at::Tensor rows = at::randn({3, 4, 5});
  FactorizationMachine layer;
  expect_close(
      layer->forward(at::cat({rows, at::zeros({3, 2, 5})}, 1)),
      layer->forward(rows));
}

// A difference of squares would be 0 in float32.
TEST(FactorizationMachineTest, LargeAndSmallValuesGiveTheirProducts) {
  FactorizationMachine layer(
      FactorizationMachineOptions{.use_first_order = false, .use_bias = false});
  at::Tensor rows =
      at::tensor({1e4F, 1e-4F, -3e-4F}).view({1, 3, 1}).requires_grad_();
  const at::Tensor score = layer->forward(rows);
  expect_close(score, at::tensor({-2.0F}).view({1, 1}), 1e-6, 1e-6);
  score.sum().backward();
  expect_close(
      rows.grad().flatten(), at::tensor({-2e-4F, 1e4F, 1e4F}), 1e-6, 0.0);
  // One feature has no pair.
  expect_close(layer->forward(rows.narrow(1, 0, 1)), at::zeros({1, 1}));
}

TEST(FactorizationMachineTest, AcceptsSmallAndLargeValuesOfAnyOrder) {
  FactorizationMachine layer(
      FactorizationMachineOptions{.use_first_order = false, .use_bias = false});
  const at::Tensor rows = at::randn({50, 6, 3}) *
      at::pow(10.0, at::randint(-5, 6, {50, 6, 1}, at::kFloat));
  const at::Tensor exact = rows.to(at::kDouble);
  // The error is relative to the sum of the sizes of all products.
  const at::Tensor error = (layer->forward(rows) - sum_of_pairs(exact)).abs() /
      sum_of_pairs(exact.abs());
  EXPECT_LT(error.max().item<double>(), 1e-6);
}

TEST(FactorizationMachineTest, AcceptsNoExamples) {
  FactorizationMachine layer;
  EXPECT_EQ(
      layer->forward(at::ones({0, 2, 3})).sizes(), at::IntArrayRef({0, 1}));
}

TEST(FactorizationMachineTest, ComputesItsOutputShape) {
  const FactorizationMachine layer;
  EXPECT_EQ(
      layer
          ->compute_output_shape(
              {{"a", PartialShape{std::nullopt, 5}},
               {"b", PartialShape{8, std::nullopt, 5}}})
          .leaf(),
      (PartialShape{8, 1}));
}

TEST(FactorizationMachineTest, RefusesBadInput) {
  FactorizationMachine layer;
  const at::Tensor rows = at::ones({2, 3});
  const auto with = [&](const at::Tensor& other) {
    return Nest<at::Tensor>{{"a", rows}, {"b", other}};
  };
  expect_refusals<Nest<at::Tensor>>(
      {{Nest<at::Tensor>::list({}),
        "[FactorizationMachine] expected one feature or more, but got none"},
       {at::ones({2, 0, 3}),
        "[FactorizationMachine] expected one feature or more, but got none"},
       {with(at::ones({3})),
        "[FactorizationMachine 'b'] expected a feature [batch, dim] or "
        "features [batch, n, dim], but got [3]"},
       {with(at::ones({2, 4})),
        "[FactorizationMachine 'b'] all features must have the same dim, but "
        "this one has 4 and an earlier one 3"},
       {with(at::ones({4, 3})),
        "[FactorizationMachine 'b'] all inputs must have the same batch size"},
       {at::ones({2, 3, 1}),
        "the rows of features must have 2 or more columns, but their width is "
        "1"},
       {at::Tensor(), "expected a tensor, but got an undefined"}},
      [&](const auto& features) { layer->forward(features); });
  EXPECT_VALUE_ERROR(
      FactorizationMachine(
          FactorizationMachineOptions{.use_first_order = false})
          ->forward(at::ones({2, 3, 0})),
      "the rows of features must have 1 or more columns, but their width is 0");
  EXPECT_TYPE_ERROR(
      layer->forward(with(rows.to(at::kDouble))),
      "[FactorizationMachine 'b'] all inputs must have the same dtype");
  EXPECT_TYPE_ERROR(
      layer->forward(rows.to(at::kLong)),
      "expected a dense floating-point tensor");
}

}  // namespace tessera::test::factorization_machine_test
