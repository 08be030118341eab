// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/causal_self_attention.h>

#include "packages/models/src/jagged_attention.h"
#include "packages/models/tests/padded_attention.h"
#include "tests/layers/gradient_check.h"

namespace tessera::test::causal_self_attention_test {

constexpr int64_t kDim = 12;

// The formula of the docstring in doubles, sequence by sequence.
at::Tensor plain_attention(
    const at::Tensor& projected,
    const std::vector<int64_t>& lengths,
    int64_t num_heads) {
  std::vector<at::Tensor> results;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    const at::Tensor heads =
        projected.narrow(0, begin, length)
            .to(at::kDouble)
            .view({length, 3, num_heads, kDim / num_heads})
            .permute({1, 2, 0, 3});  // [3, heads, length, head_dim]
    const at::Tensor scores = at::matmul(heads[0], heads[1].transpose(1, 2)) /
        std::sqrt(static_cast<double>(kDim / num_heads));
    const at::Tensor is_later = at::ones({length, length}, at::kBool).triu(1);
    const at::Tensor shares =
        scores.masked_fill(is_later, -INFINITY).softmax(-1);
    results.push_back(
        at::matmul(shares, heads[2]).transpose(0, 1).reshape({length, kDim}));
    begin += length;
  }
  return at::cat(results);
}

at::Tensor random_rows(int64_t columns) {
  return at::randn({sum_of(kLengths), columns});
}

TEST(CausalSelfAttentionTest, MatchesItsFormula) {
  for (const int64_t num_heads : {1, 2, 3, 12}) {
    const at::Tensor projected = random_rows(3 * kDim);
    const at::Tensor splits = splits_of(kLengths);
    const at::Tensor expected = plain_attention(projected, kLengths, num_heads);
    expect_close(
        jagged_causal_attention(projected, splits, num_heads),
        expected,
        1e-5,
        1e-5);
    expect_close(
        jagged_causal_attention(projected.to(at::kDouble), splits, num_heads),
        expected,
        1e-12,
        1e-12);
  }
}

TEST(CausalSelfAttentionTest, MatchesPaddedAttentionOfTorch) {
  for (const int64_t num_heads : {1, 4}) {
    CausalSelfAttention layer(
        CausalSelfAttentionOptions{.num_heads = num_heads});
    const at::Tensor x = random_rows(kDim).requires_grad_();
    const at::Tensor slopes = random_rows(kDim);
    const auto gradients_of = [&](const at::Tensor& result) {
      std::vector<at::Tensor> sources = layer->parameters();
      sources.push_back(x);
      return torch::autograd::grad({(result * slopes).sum()}, sources);
    };
    const at::Tensor result = layer->forward(x, splits_of(kLengths));
    const at::Tensor expected = packed(
        attention_on_padded(*layer, "", num_heads, padded(x, kLengths)),
        kLengths);
    expect_close(result, expected, 1e-4, 1e-5);
    const auto gradients = gradients_of(result);
    const auto expected_gradients = gradients_of(expected);
    ASSERT_EQ(gradients.size(), 5U);
    for (size_t i = 0; i < gradients.size(); ++i) {
      expect_close(gradients[i], expected_gradients[i], 1e-4, 1e-4);
    }
  }
}

TEST(CausalSelfAttentionTest, GradientsMatchFiniteDifferences) {
  const std::vector<int64_t> lengths{3, 0, 4, 1};
  const at::Tensor projected = at::randn({8, 12}, at::kDouble).requires_grad_();
  expect_gradients(
      [&] {
        return jagged_causal_attention(
            projected, splits_of(lengths), /*num_heads=*/2);
      },
      {projected});
}

// The gradients of the kernels against those of the operators, in double.
TEST(CausalSelfAttentionTest, KernelGradientsMatchOperators) {
  for (const int64_t num_heads : {1, 2, 6}) {
    const at::Tensor splits = splits_of(kLengths);
    const at::Tensor slopes = random_rows(kDim);
    const at::Tensor values = random_rows(3 * kDim);
    const auto gradient_in = [&](at::ScalarType dtype) {
      const at::Tensor source = values.to(dtype, false, true).requires_grad_();
      return torch::autograd::grad(
          {(jagged_causal_attention(source, splits, num_heads) *
            slopes.to(dtype))
               .sum()},
          {source})[0];
    };
    expect_close(gradient_in(at::kFloat), gradient_in(at::kDouble), 1e-4, 1e-5);
  }
}

TEST(CausalSelfAttentionTest, HasSecondDerivatives) {
  const at::Tensor splits = splits_of({2, 3});
  const at::Tensor values = at::randn({5, 6});
  const auto second_in = [&](at::ScalarType dtype) {
    const at::Tensor source = values.to(dtype, false, true).requires_grad_();
    const at::Tensor result = jagged_causal_attention(source, splits, 1);
    const at::Tensor gradient = torch::autograd::grad(
        {result.square().sum()}, {source}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({gradient.square().sum()}, {source})[0];
  };
  expect_close(second_in(at::kFloat), second_in(at::kDouble), 1e-3, 1e-4);
}

// The kernels and the operators drop the same shares.
TEST(CausalSelfAttentionTest, DropsSharesOutBySeed) {
  const at::Tensor splits = splits_of(kLengths);
  const at::Tensor values = random_rows(3 * kDim);
  const at::Tensor slopes = random_rows(kDim);
  const auto run = [&](uint64_t seed, at::ScalarType dtype) {
    torch::manual_seed(seed);
    const at::Tensor source = values.to(dtype, false, true).requires_grad_();
    const at::Tensor result =
        jagged_causal_attention(source, splits, /*num_heads=*/2, 0.3);
    return std::pair(
        result.detach(),
        torch::autograd::grad(
            {(result * slopes.to(dtype)).sum()}, {source})[0]);
  };
  const auto expected = run(1, at::kDouble);
  const auto floats = run(1, at::kFloat);
  expect_close(floats.first, expected.first, 1e-4, 1e-5);
  expect_close(floats.second, expected.second, 1e-4, 1e-4);
  EXPECT_TRUE(at::equal(run(1, at::kFloat).second, floats.second));
  EXPECT_FALSE(at::equal(run(2, at::kFloat).first, floats.first));

  CausalSelfAttention layer(CausalSelfAttentionOptions{.dropout = 0.5});
  const at::Tensor x = random_rows(kDim);
  EXPECT_FALSE(at::equal(layer->forward(x, splits), layer->forward(x, splits)));
  layer->eval();
  EXPECT_TRUE(at::equal(layer->forward(x, splits), layer->forward(x, splits)));
}

// With equal scores and values of 1, a result is the sum of the kept shares.
TEST(CausalSelfAttentionTest, DropsTheGivenShareAndScalesTheRest) {
  constexpr int64_t kLength = 400;
  at::Tensor projected = at::zeros({kLength, 3});
  projected.select(1, 2).fill_(1.0);
  const at::Tensor sums =
      jagged_causal_attention(projected, splits_of({kLength}), 1, 0.25)
          .flatten();
  const at::Tensor counts =
      sums * at::arange(1, kLength + 1) * 0.75;  // kept shares of each position
  expect_close(counts, counts.round(), 1e-3, 1e-3);
  const double kept = counts.sum().item<double>();
  const double shares = 0.5 * kLength * (kLength + 1);
  EXPECT_NEAR(kept / shares, 0.75, 5 * std::sqrt(0.75 * 0.25 / shares));
}

TEST(CausalSelfAttentionTest, SequencesAndLaterPositionsHaveNoEffect) {
  const at::Tensor splits = splits_of({40, 40});
  CausalSelfAttention layer;
  const at::Tensor x = at::randn({80, kDim});
  const at::Tensor before = layer->forward(x, splits);
  at::Tensor changed = x.clone();
  changed.narrow(0, 35, 5).add_(1.0);  // the end of the first sequence
  const at::Tensor after = layer->forward(changed, splits);
  EXPECT_TRUE(at::equal(after.narrow(0, 0, 35), before.narrow(0, 0, 35)));
  EXPECT_FALSE(at::equal(after.narrow(0, 35, 5), before.narrow(0, 35, 5)));
  EXPECT_TRUE(at::equal(after.narrow(0, 40, 40), before.narrow(0, 40, 40)));
}

TEST(CausalSelfAttentionTest, NumberOfThreadsDoesNotChangeTheBits) {
  const at::Tensor splits = splits_of(kLengths);
  const at::Tensor values = random_rows(3 * 64);
  const at::Tensor slopes = random_rows(64);
  std::vector<at::Tensor> results;
  for (const int count : {1, 3}) {
    const Threads threads(count);
    const at::Tensor source = values.detach().clone().requires_grad_();
    const at::Tensor result = jagged_causal_attention(source, splits, 2);
    (result * slopes).sum().backward();
    results.push_back(result.detach());
    results.push_back(source.grad());
  }
  EXPECT_TRUE(at::equal(results[0], results[2]));
  EXPECT_TRUE(at::equal(results[1], results[3]));
}

TEST(CausalSelfAttentionTest, TakesEmptyBatchesAndInt32Splits) {
  CausalSelfAttention layer;
  layer->build(PartialShape{std::nullopt, kDim});
  for (const at::Tensor& splits : {int64s({0}), int64s({0, 0, 0})}) {
    const at::Tensor x = at::randn({0, kDim}).requires_grad_();
    const at::Tensor result = layer->forward(x, splits);
    EXPECT_EQ(result.sizes(), at::IntArrayRef({0, kDim}));
    result.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
  const at::Tensor x = at::randn({3, kDim});
  EXPECT_TRUE(at::equal(
      layer->forward(x, int32s({0, 1, 3})),
      layer->forward(x, int64s({0, 1, 3}))));
}

TEST(CausalSelfAttentionTest, KeepsNaNInItsSequence) {
  CausalSelfAttention layer;
  at::Tensor x = at::randn({8, kDim});
  x[5].fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor result = layer->forward(x, int64s({0, 4, 8}));
  EXPECT_TRUE(at::isfinite(result.narrow(0, 0, 4)).all().item<bool>());
  EXPECT_TRUE(at::isnan(result.narrow(0, 5, 3)).all().item<bool>());
}

TEST(CausalSelfAttentionTest, RefusesWrongInputs) {
  EXPECT_VALUE_ERROR(
      CausalSelfAttention(CausalSelfAttentionOptions{.dropout = -0.5}),
      "dropout must be in [0, 1), but got -0.5");
  EXPECT_VALUE_ERROR(
      CausalSelfAttention(CausalSelfAttentionOptions{.num_heads = 0}),
      "[CausalSelfAttention] num_heads must be >= 1, but got 0");
  CausalSelfAttention layer(CausalSelfAttentionOptions{.num_heads = 5});
  const at::Tensor x = at::randn({4, kDim});
  const at::Tensor splits = int64s({0, 4});
  EXPECT_VALUE_ERROR(
      layer->forward(x, splits),
      "num_heads must divide dim, but got 5 heads and dim 12");
  CausalSelfAttention attention;
  EXPECT_TYPE_ERROR(attention->forward(x.to(at::kLong), splits), "x");
  EXPECT_TYPE_ERROR(
      attention->forward(x, floats({0, 4})),
      "row_splits must be int32 or int64");
  expect_refusals<std::pair<at::Tensor, at::Tensor>>(
      {{{at::randn({2, 2, kDim}), splits}, "x must have shape [nnz, dim]"},
       {{at::Tensor(), int64s({0})}, "x"},
       {{x, at::Tensor()}, "got no tensor"},
       {{x, at::empty({0}, at::kLong)},
        "row_splits must have shape [batch + 1]"},
       {{x, int64s({0, 3})},
        "end with the number of positions, 4, but got 0 and 3"},
       {{x, int64s({0, 5, 3, 4})},
        "row_splits[1] is 5 and row_splits[2] is 3"}},
      [&](const auto& row) { attention->forward(row.first, row.second); });
  EXPECT_FALSE(attention->input_shapes().has_value());  // nothing was built
  attention->forward(x, splits);
  EXPECT_VALUE_ERROR(attention->forward(at::randn({4, 6}), splits), "6");
}

}  // namespace tessera::test::causal_self_attention_test
