// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/matrix_factorization.h>

#include "tests/test_util.h"

namespace tessera::test::matrix_factorization_test {

TEST(MatrixFactorizationTest, AddsMeanBiasesAndDotProduct) {
  MatrixFactorization layer(MatrixFactorizationOptions{.global_mean = 3.5});
  const at::Tensor users = floats({0.5, 1, 2, -1, 0, 3}).view({2, 3});
  const at::Tensor items = floats({0.25, 4, 5, 1, 7, 0.5}).view({2, 3});
  // 3.5 + 0.5 + 0.25 + 1 * 4 + 2 * 5, and 3.5 - 1 + 1 + 0 * 7 + 3 * 0.5.
  expect_close(
      layer->forward({{"user", users}, {"item", items}}),
      floats({18.25, 5}).view({2, 1}));
  MatrixFactorization without(MatrixFactorizationOptions{.use_biases = false});
  expect_close(
      without->forward({{"user", users}, {"item", items}}),
      floats({14.125, 0.5}).view({2, 1}));
}

TEST(MatrixFactorizationTest, ScoresSeveralItemsPerUser) {
  MatrixFactorization layer;
  const at::Tensor users = at::randn({3, 1, 5}).expand({3, 4, 5});
  const at::Tensor items = at::randn({3, 4, 5});
  const at::Tensor scores = layer->forward({{"user", users}, {"item", items}});
  EXPECT_EQ(scores.sizes(), at::IntArrayRef({3, 4, 1}));
  expect_close(
      scores.select(1, 2),
      layer->forward(
          {{"user", users.select(1, 2)}, {"item", items.select(1, 2)}}));
}

TEST(MatrixFactorizationTest, AcceptsNoExamples) {
  MatrixFactorization layer;
  const at::Tensor none = at::ones({0, 3}).requires_grad_();
  const at::Tensor scores = layer->forward({{"user", none}, {"item", none}});
  EXPECT_EQ(scores.sizes(), at::IntArrayRef({0, 1}));
  scores.sum().backward();
  EXPECT_EQ(none.grad().sizes(), none.sizes());
}

TEST(MatrixFactorizationTest, ComputesItsOutputShape) {
  const MatrixFactorization layer;
  const Nest<PartialShape> shapes{
      {"user", PartialShape{std::nullopt, 5}}, {"item", PartialShape{8, 5}}};
  EXPECT_EQ(layer->compute_output_shape(shapes).leaf(), (PartialShape{8, 1}));
}

TEST(MatrixFactorizationTest, RefusesBadInput) {
  EXPECT_VALUE_ERROR(
      MatrixFactorization(MatrixFactorizationOptions{
          .global_mean = std::numeric_limits<double>::quiet_NaN()}),
      "[MatrixFactorization] global_mean must be finite, but got nan");
  MatrixFactorization layer;
  const at::Tensor rows = at::ones({2, 3});
  const auto pair = [](const at::Tensor& user, const at::Tensor& item) {
    return Nest<at::Tensor>{{"user", user}, {"item", item}};
  };
  expect_refusals<Nest<at::Tensor>>(
      {{rows,
        "[MatrixFactorization] expected two inputs, the rows of users and of "
        "items, but got 1"},
       {Nest<at::Tensor>{{"a", rows}, {"b", rows}, {"c", rows}}, "but got 3"},
       {Nest<at::Tensor>::list({}), "but got 0"},
       {pair(rows, {}),
        "[MatrixFactorization] input 'item': expected a tensor"},
       {pair(rows, at::ones({2, 4})),
        "users and items must have the same shape, but got [2, 3] and [2, 4]"},
       {pair(rows, at::ones({1, 3})), "but got [2, 3] and [1, 3]"},
       {pair(at::ones({3}), at::ones({3})),
        "expected an input [batch, ..., dim] of rank 2 or more, but got [3]"},
       {pair(at::ones({2, 1}), at::ones({2, 1})),
        "a row must have a bias and one factor or more, but the rows have the "
        "shape [2, 1]"}},
      [&](const auto& inputs) { layer->forward(inputs); });
  EXPECT_TYPE_ERROR(
      layer->forward(pair(rows, rows.to(at::kDouble))),
      "users and items must have the same dtype, but got Float and Double");
  EXPECT_TYPE_ERROR(
      layer->forward(pair(rows, rows.to(at::kLong))),
      "input 'item': expected a dense floating-point tensor");
}

}  // namespace tessera::test::matrix_factorization_test
