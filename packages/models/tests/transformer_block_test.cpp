// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/transformer_block.h>

#include "packages/models/src/dropout_sum.h"
#include "packages/models/tests/padded_attention.h"
#include "tests/test_util.h"

namespace tessera::test::transformer_block_test {

constexpr int64_t kDim = 8;

TEST(TransformerBlockTest, MatchesPaddedOperatorsOfTorch) {
  for (const TransformerBlockOptions& options :
       {TransformerBlockOptions{},
        TransformerBlockOptions{
            .num_heads = 2, .feed_forward_dim = 20, .norm = NormOrder::kPost},
        TransformerBlockOptions{
            .num_heads = 4, .activation = Activation::kGelu},
        TransformerBlockOptions{
            .num_heads = 2,
           .feed_forward_dim = 12,
           .activation = Activation::kSilu,
           .gated = true},
        TransformerBlockOptions{
            .activation = Activation::kSilu,
           .norm = NormOrder::kPost,
           .gated = true}}) {
    TransformerBlock block(options);
    const at::Tensor x = at::randn({sum_of(kLengths), kDim}).requires_grad_();
    const at::Tensor result = block->forward(x, splits_of(kLengths));
    const at::Tensor expected = packed(
        block_on_padded(*block, "", block->options(), padded(x, kLengths)),
        kLengths);
    expect_close(result, expected, 1e-4, 1e-5);
    std::vector<at::Tensor> sources = block->parameters();
    // Two norms, attention and MLP with 4 tensors each, or two gates and two matrices.
    ASSERT_EQ(sources.size(), options.gated ? 14U : 12U);
    sources.push_back(x);
    const at::Tensor slopes = at::randn(x.sizes());
    const auto gradients =
        torch::autograd::grad({(result * slopes).sum()}, sources);
    const auto others =
        torch::autograd::grad({(expected * slopes).sum()}, sources);
    for (size_t i = 0; i < sources.size(); ++i) {
      expect_close(gradients[i], others[i], 1e-3, 1e-4);
    }
  }
}

class TransformerBlockDropoutTest : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(
    Gated,
    TransformerBlockDropoutTest,
    testing::Bool(),
    testing::PrintToStringParamName());

TEST_P(TransformerBlockDropoutTest, SeedDeterminesIt) {
  TransformerBlock block(TransformerBlockOptions{
      .activation = Activation::kSilu, .dropout = 0.4, .gated = GetParam()});
  const at::Tensor x = at::randn({sum_of(kLengths), kDim});
  const at::Tensor splits = splits_of(kLengths);
  block->build(PartialShape{std::nullopt, kDim});
  const auto run = [&](uint64_t seed, int count) {
    const Threads threads(count);
    torch::manual_seed(seed);
    return block->forward(x, splits);
  };
  const at::Tensor expected = run(3, 1);
  EXPECT_TRUE(at::equal(run(3, 1), expected));
  // LibTorch's products differ in the last bits.
  expect_close(run(3, 4), expected, 1e-4, 1e-5);
  EXPECT_FALSE(at::equal(run(4, 1), expected));
  block->eval();
  const at::Tensor without = block->forward(x, splits);
  EXPECT_TRUE(at::equal(block->forward(x, splits), without));
  expect_close(
      without,
      packed(
          block_on_padded(*block, "", block->options(), padded(x, kLengths)),
          kLengths),
      1e-4,
      1e-5);
}

TEST(DropoutSumTest, ScalesWhatIsKeptAndAddsTheRest) {
  const at::Tensor addend = at::randn({300, 20}).requires_grad_();
  const at::Tensor x = at::ones({300, 20}).requires_grad_();
  const at::Tensor sum = dropout_sum(x, addend, 0.25);
  const at::Tensor kept = (sum - addend).detach();
  const at::Tensor is_kept = kept.gt(0.5);
  expect_close(kept, is_kept.to(at::kFloat) / 0.75, 1e-5, 1e-5);
  EXPECT_NEAR(is_kept.to(at::kDouble).mean().item<double>(), 0.75, 5 * 0.0056);
  const at::Tensor slopes = at::randn({300, 20});
  const auto gradients =
      torch::autograd::grad({(sum * slopes).sum()}, {x, addend});
  expect_close(gradients[0], slopes * is_kept / 0.75);
  EXPECT_TRUE(at::equal(gradients[1], slopes));
  EXPECT_TRUE(at::equal(dropout_sum(x, addend, 0.0), x + addend));
  EXPECT_FALSE(dropout_sum(x, at::Tensor(), 0.25).isnan().any().item<bool>());
}

TEST(DropoutSumTest, BackwardWithAGraphHasTheSameMask) {
  const at::Tensor x = at::randn({40, 6}).requires_grad_();
  const auto gradient_of = [&](bool create_graph) {
    torch::manual_seed(5);
    return torch::autograd::grad(
        {dropout_sum(x, at::Tensor(), 0.5).square().sum()},
        {x},
        {},
        true,
        create_graph)[0];
  };
  expect_close(gradient_of(true), gradient_of(false));
}

TEST(TransformerBlockTest, RefusesWrongOptionsAndInputs) {
  EXPECT_VALUE_ERROR(
      TransformerBlock(TransformerBlockOptions{.num_heads = -1}),
      "num_heads must be >= 1, but got -1");
  EXPECT_VALUE_ERROR(
      TransformerBlock(TransformerBlockOptions{.feed_forward_dim = -1}),
      "feed_forward_dim must be >= 0, but got -1");
  for (const double dropout :
       {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_VALUE_ERROR(
        TransformerBlock(TransformerBlockOptions{.dropout = dropout}),
        "dropout must be in [0, 1)");
  }
  TransformerBlock block(TransformerBlockOptions{.num_heads = 3});
  const at::Tensor splits = int64s({0, 2});
  EXPECT_VALUE_ERROR(
      block->forward(at::randn({2, kDim}), splits),
      "num_heads must divide dim, but got 3 heads and dim 8");
  EXPECT_VALUE_ERROR(block->forward(at::randn({kDim}), splits), "but got");
  block->forward(at::randn({2, 6}), splits);
  EXPECT_VALUE_ERROR(
      block->forward(at::randn({2, 9}), splits),
      "was built for dim 6, but got 9");
  EXPECT_VALUE_ERROR(
      block->forward(at::randn({3, 6}), splits), "row_splits must begin");
  EXPECT_EQ(
      block->forward(at::randn({0, 6}), int64s({0, 0})).sizes(),
      at::IntArrayRef({0, 6}));
}

TEST(TransformerBlockTest, OrdersOfNormsHaveNames) {
  EXPECT_EQ(norm_order_from_string("post"), NormOrder::kPost);
  EXPECT_VALUE_ERROR(
      norm_order_from_string("in"), "norm must be one of pre, post");
  EXPECT_EQ(
      JsonValue<TransformerBlockOptions>::write({.norm = NormOrder::kPost})
          .at("norm"),
      "post");
}

}  // namespace tessera::test::transformer_block_test
