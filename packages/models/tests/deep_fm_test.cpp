// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/deep_fm.h>

#include "tests/test_util.h"

namespace tessera::test::deep_fm_test {

TEST(DeepFMTest, SharesTheVectorsAndHasOneBias) {
  DeepFM layer(DeepFMOptions{.hidden_units = {7, 4}});
  const at::Tensor a = at::randn({3, 5});
  const at::Tensor b = at::randn({3, 2, 5});
  const at::Tensor scores = layer->forward({{"a", a}, {"b", b}});
  EXPECT_EQ(scores.sizes(), at::IntArrayRef({3, 1}));
  expect_close(layer->forward(at::cat({a.unsqueeze(1), b}, 1)), scores);
  Texts names;
  for (const auto& parameter : layer->named_parameters()) {
    names.push_back(parameter.key());
  }
  EXPECT_EQ(
      names,
      listed("mlp.linear_0.weight, mlp.linear_0.bias, mlp.linear_1.weight, "
             "mlp.linear_1.bias, mlp.linear_2.weight, mlp.linear_2.bias"));
  EXPECT_EQ(
      layer->named_parameters()["mlp.linear_0.weight"].sizes(),
      at::IntArrayRef({7, 12}));
}

TEST(DeepFMTest, AcceptsNoExamples) {
  DeepFM layer(DeepFMOptions{.hidden_units = {4}});
  EXPECT_EQ(
      layer->forward(at::ones({0, 2, 3})).sizes(), at::IntArrayRef({0, 1}));
}

TEST(DeepFMTest, RefusesBadInput) {
  EXPECT_VALUE_ERROR(
      DeepFM(DeepFMOptions{}),
      "[DeepFM] hidden_units must have 1 to 1023 sizes, but got 0");
  EXPECT_VALUE_ERROR(
      (DeepFM(DeepFMOptions{.hidden_units = {4, 0}})),
      "[DeepFM] hidden_units[1] must be >= 1, but got 0");
  DeepFM layer(DeepFMOptions{.hidden_units = {4}});
  const at::Tensor rows = at::ones({2, 3});
  EXPECT_VALUE_ERROR(
      layer->forward(Nest<at::Tensor>::list({})),
      "[DeepFM] expected one feature or more, but got none");
  EXPECT_VALUE_ERROR(
      (layer->forward({{"a", rows}, {"b", at::ones({2, 4})}})),
      "[DeepFM 'b'] all features must have the same dim");
  EXPECT_VALUE_ERROR(
      layer->forward(at::ones({2, 3, 1})),
      "[DeepFM] the rows of features must have 2 or more columns");
  EXPECT_VALUE_ERROR(
      layer->build(PartialShape{std::nullopt, std::nullopt, 3}),
      "[DeepFM] needs the number of features and their dim");
  EXPECT_FALSE(layer->input_shapes().has_value());

  layer->forward({{"a", rows}, {"b", rows}});
  EXPECT_VALUE_ERROR(
      layer->forward(rows),
      "[DeepFM] was built for 2 features in rows of width 3, but got 1 in rows "
      "of width 3");
  EXPECT_VALUE_ERROR(
      layer->forward(at::ones({2, 2, 4})), "but got 2 in rows of width 4");
  EXPECT_TYPE_ERROR(
      layer->forward(at::ones({2, 2, 3}, at::kDouble)),
      "has parameters of Float, but got inputs of Double");
}

}  // namespace tessera::test::deep_fm_test
