// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/transformer_block.h>

#include "packages/models/src/dropout_sum.h"
#include "packages/models/src/sequence_filter.h"
#include "packages/models/tests/padded_attention.h"
#include "tests/layers/gradient_check.h"

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
           .gated = true},
        TransformerBlockOptions{
            .activation = Activation::kGelu,
           .norm = NormOrder::kPost,
           .filter = SequenceFilterOptions{
               .share = 0.3, .num_frequencies = 3, .length = 75}}}) {
    TransformerBlock block(options);
    const at::Tensor x = at::randn({sum_of(kLengths), kDim}).requires_grad_();
    const at::Tensor result = block->forward(x, splits_of(kLengths));
    const at::Tensor expected = packed(
        block_on_padded(*block, "", block->options(), padded(x, kLengths)),
        kLengths);
    expect_close(result, expected, 1e-4, 1e-5);
    std::vector<at::Tensor> sources = block->parameters();
    // Two norms, attention and MLP with 4 tensors each, or two gates and two matrices. A
    // filter has a norm and the scale.
    ASSERT_EQ(sources.size(), options.gated ? 14U : options.filter ? 15U : 12U);
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

TransformerBlockOptions options_with_filter() {
  return {
      .norm = NormOrder::kPost,
      .filter = SequenceFilterOptions{.share = 0.3, .length = 70}};
}

TEST(TransformerBlockTest, TheLastPositionsAreThoseOfAllPositions) {
  const std::vector<int64_t> lengths{3, 1, 70, 32};
  for (const TransformerBlockOptions& options :
       {TransformerBlockOptions{},
        TransformerBlockOptions{.num_heads = 2, .gated = true},
        options_with_filter()}) {
    TransformerBlock block(options);
    const at::Tensor splits = splits_of(lengths);
    const at::Tensor x = at::randn({106, kDim}).requires_grad_();
    const at::Tensor last = block->forward_last(x, splits);
    const at::Tensor all =
        block->forward(x, splits).index_select(0, int64s({2, 3, 73, 105}));
    expect_close(last, all, 1e-4, 1e-5);
    const auto gradient_of = [&](const at::Tensor& result) {
      return torch::autograd::grad({result.square().sum()}, {x})[0];
    };
    expect_close(gradient_of(last), gradient_of(all), 1e-3, 1e-4);
  }
}

TEST(TransformerBlockTest, AFilterShowsTheLaterPositions) {
  for (const bool has_filter : {false, true}) {
    TransformerBlock block(
        has_filter ? options_with_filter() : TransformerBlockOptions{});
    const at::Tensor x = at::randn({5, kDim});
    const at::Tensor before = block->forward(x, splits_of({3, 2}));
    at::Tensor changed = x.clone();
    changed[2].add_(1.0);
    const at::Tensor after = block->forward(changed, splits_of({3, 2}));
    EXPECT_EQ(at::equal(after[0], before[0]), !has_filter);
    EXPECT_TRUE(at::equal(after[3], before[3]));  // another sequence
  }
}

TEST(LowFrequenciesTest, MatchTheFourierTransform) {
  for (const int64_t length : {70, 71, 100}) {
    for (const int64_t count : {1, 3, 35, 36}) {
      const at::Tensor x = at::randn({sum_of(kLengths), 5}, at::kDouble);
      const at::Tensor splits = splits_of(kLengths);
      const at::Tensor expected =
          packed(low_on_padded(padded(x, kLengths), length, count), kLengths);
      expect_close(low_frequencies(x, splits, length, count), expected);
      expect_close(
          low_frequencies(x.to(at::kFloat), splits, length, count),
          expected.to(at::kFloat),
          1e-4,
          1e-5);
    }
  }
  // All frequencies are the rows themselves.
  const at::Tensor x = at::randn({7, 2}, at::kDouble);
  expect_close(low_frequencies(x, splits_of({5, 2}), 8, 5), x);
}

TEST(LowFrequenciesTest, GradientsMatchFiniteDifferencesAndOperators) {
  const at::Tensor splits = splits_of({3, 0, 4, 1});
  const at::Tensor x = at::randn({8, 3}, at::kDouble).requires_grad_();
  expect_gradients([&] { return low_frequencies(x, splits, 6, 2); }, {x});
  const at::Tensor slopes = at::randn({8, 3});
  const auto gradients_in = [&](at::ScalarType dtype) {
    const at::Tensor source =
        x.detach().to(dtype, false, true).requires_grad_();
    const at::Tensor first = torch::autograd::grad(
        {(low_frequencies(source, splits, 6, 2).square() * slopes.to(dtype))
             .sum()},
        {source},
        {},
        true,
        /*create_graph=*/true)[0];
    return std::pair(
        first.detach(),
        torch::autograd::grad({first.square().sum()}, {source})[0]);
  };
  const auto floats = gradients_in(at::kFloat);
  const auto doubles = gradients_in(at::kDouble);
  expect_close(floats.first, doubles.first, 1e-4, 1e-5);
  expect_close(floats.second, doubles.second, 1e-3, 1e-4);
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
  EXPECT_VALUE_ERROR(
      TransformerBlock(TransformerBlockOptions{.attention_dropout = 1.0}),
      "attention_dropout must be in [0, 1), but got 1");
  const auto filtered = [](const SequenceFilterOptions& filter) {
    return TransformerBlock(
        TransformerBlockOptions{.norm = NormOrder::kPost, .filter = filter});
  };
  EXPECT_VALUE_ERROR(
      TransformerBlock(TransformerBlockOptions{
          .filter = SequenceFilterOptions{.length = 50}}),
      "a filter needs norm = NormOrder::kPost and gated = false");
  EXPECT_VALUE_ERROR(
      filtered({.share = std::nan(""), .length = 50}),
      "filter.share must be in [0, 1], but got nan");
  EXPECT_VALUE_ERROR(filtered({}), "but got 0 and 3");
  EXPECT_VALUE_ERROR(
      filtered({.num_frequencies = 5, .length = 7}), "but got 7 and 5");
  EXPECT_VALUE_ERROR(
      filtered({.num_frequencies = 2, .length = 3})
          ->forward(at::randn({6, kDim}), int64s({0, 2, 6})),
      "at most filter.length = 3 positions, but one has 4");
  TransformerBlock block(TransformerBlockOptions{.num_heads = 3});
  EXPECT_VALUE_ERROR(
      block->forward_last(at::randn({2, 6}), int64s({0, 2, 2})),
      "needs one position or more in each sequence");
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
