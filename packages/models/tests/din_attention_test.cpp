// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/layer_json.h>
#include <tessera/models/din_attention.h>

#include "tests/test_util.h"

#include <ATen/record_function.h>

namespace tessera::test::din_attention_test {

const std::vector<DINActivation> kActivations{
    DINActivation::kDice,
    DINActivation::kPRelu,
    DINActivation::kRelu,
    DINActivation::kSigmoid};

DINAttention make_layer(DINActivation activation, bool use_softmax) {
  return DINAttention(DINAttentionOptions{
      .hidden_units = {6, 4},
      .activation = activation,
      .use_softmax = use_softmax});
}

// Calls `check` with a layer of each kind.
template <class Check>
void for_each_kind(Check check) {
  for (const DINActivation activation : kActivations) {
    for (const bool use_softmax : {false, true}) {
      SCOPED_TRACE(to_string(activation) + (use_softmax ? " softmax" : ""));
      check(make_layer(activation, use_softmax));
    }
  }
}

void expect_finite_gradients(const DINAttention& layer) {
  for (const auto& parameter : layer->named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    ASSERT_TRUE(gradient.defined()) << parameter.key();
    EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << parameter.key();
  }
}

TEST(DINAttentionTest, PaddingHasNoEffect) {
  for_each_kind([](DINAttention layer) {
    const at::Tensor query = at::randn({3, 5});
    const at::Tensor keys = at::randn({3, 4, 5});
    const at::Tensor lengths = int64s({2, 0, 4});
    at::Tensor other = keys.clone();
    other[0].slice(0, 2).fill_(1e6);
    other[1].fill_(-1e6);
    layer->forward(query, keys, lengths);
    layer->eval();
    EXPECT_TRUE(at::equal(
        layer->forward(query, keys, lengths),
        layer->forward(query, other, lengths)));
    layer->train();
    other.requires_grad_();
    layer->forward(query, other, lengths).sum().backward();
    EXPECT_TRUE(at::equal(other.grad()[0].slice(0, 2), at::zeros({2, 5})));
    EXPECT_TRUE(at::equal(other.grad()[1], at::zeros({4, 5})));
    expect_finite_gradients(layer);
  });
}

TEST(DINAttentionTest, HistoriesOfLengthZeroGiveZeros) {
  for_each_kind([](DINAttention layer) {
    const at::Tensor query = at::randn({3, 5}).requires_grad_();
    const at::Tensor keys = at::randn({3, 4, 5}).requires_grad_();
    const at::Tensor result = layer->forward(query, keys, int64s({0, 0, 0}));
    EXPECT_TRUE(at::equal(result, at::zeros({3, 5})));
    result.sum().backward();
    EXPECT_TRUE(at::equal(query.grad(), at::zeros({3, 5})));
    EXPECT_TRUE(at::equal(keys.grad(), at::zeros({3, 4, 5})));
    expect_finite_gradients(layer);
    for (const auto& buffer : layer->named_buffers()) {
      EXPECT_TRUE(buffer.value().isfinite().all().item<bool>());
    }
    EXPECT_TRUE(at::equal(
        layer->forward(query, at::ones({3, 0, 5}), int64s({0, 7, 0})),
        at::zeros({3, 5})));
    EXPECT_TRUE(at::equal(
        layer->forward(query, at::ones({3, 0, 5})), at::zeros({3, 5})));
  });
}

TEST(DINAttentionTest, AcceptsNoExamples) {
  for_each_kind([](DINAttention layer) {
    const at::Tensor lengths = at::zeros({0}, at::kLong);
    const std::vector<int64_t> expected{0, 5};
    EXPECT_EQ(
        layer->forward(at::ones({0, 5}), at::ones({0, 4, 5}), lengths).sizes(),
        expected);
    EXPECT_EQ(
        layer->forward(at::ones({0, 5}), at::ones({0, 4, 5})).sizes(),
        expected);
  });
}

TEST(DINAttentionTest, LengthsMayBeLongerOrMissing) {
  for_each_kind([](DINAttention layer) {
    const at::Tensor query = at::randn({3, 5});
    const at::Tensor keys = at::randn({3, 4, 5});
    layer->forward(query, keys);
    layer->eval();
    const at::Tensor expected = layer->forward(query, keys);
    expect_close(layer->forward(query, keys, int64s({4, 4, 4})), expected);
    expect_close(layer->forward(query, keys, int32s({4, 100, 5})), expected);
    // Histories of another length need no other layer.
    EXPECT_EQ(
        layer->forward(query, at::randn({3, 9, 5}), int64s({2, 0, 4})).sizes(),
        query.sizes());
  });
}

TEST(DINAttentionTest, SoftmaxWeightsSumToOne) {
  DINAttention layer = make_layer(DINActivation::kRelu, /*use_softmax=*/true);
  expect_close(
      layer->forward(at::randn({3, 5}), at::ones({3, 4, 5}), int64s({1, 4, 0})),
      at::ones({3, 5}) * floats({1, 1, 0}).unsqueeze(1));
}

// Counts the rows of the matrix products while it exists.
class RowCounter {
 public:
  RowCounter() {
    rows = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function)
                -> std::unique_ptr<at::ObserverContext> {
              if (std::string(function.name()) == "aten::addmm") {
                rows += function.inputs()[1].toTensor().size(0);
              }
              return nullptr;
            })
            .needsInputs(true));
  }
  RowCounter(const RowCounter&) = delete;
  RowCounter& operator=(const RowCounter&) = delete;
  ~RowCounter() {
    at::removeCallback(handle_);
  }

  static inline int64_t rows = 0;

 private:
  at::CallbackHandle handle_;
};

TEST(DINAttentionTest, PaddingDoesNotEnterTheMLP) {
#ifndef NDEBUG
  // RecordFunction has another layout in headers with assertions than in LibTorch.
  GTEST_SKIP() << "a build without NDEBUG can't count the rows";
#endif
  DINAttention layer = make_layer(DINActivation::kRelu, /*use_softmax=*/false);
  const at::Tensor query = at::randn({3, 5});
  const at::Tensor keys = at::randn({3, 100, 5});
  layer->forward(query, keys);
  const at::NoGradGuard no_grad;
  const RowCounter counter;
  layer->forward(query, keys, int64s({2, 0, 5}));
  // One product with the 3 queries, and four with the 7 positions: two in the first
  // layer and one in each of the others.
  EXPECT_EQ(RowCounter::rows, 3 + 4 * 7);
}

TEST(DINAttentionTest, LengthsOfARaggedFeature) {
  const Feature history = RaggedFeature{
      .values = int64s({7, 8, 9}), .row_splits = int64s({0, 2, 2, 3})};
  EXPECT_TRUE(at::equal(history_lengths(history), int64s({2, 0, 1})));
  EXPECT_TYPE_ERROR(
      history_lengths(int64s({1, 2})),
      "[history_lengths] expected a ragged feature with row_splits, but got a "
      "dense tensor");
  EXPECT_TYPE_ERROR(history_lengths(SparseFeature{}), "a sparse feature");
  EXPECT_TYPE_ERROR(history_lengths(RaggedFeature{}), "one without row_splits");
}

TEST(DINAttentionTest, ActivationsHaveNames) {
  for (const DINActivation activation : kActivations) {
    EXPECT_EQ(din_activation_from_string(to_string(activation)), activation);
  }
  EXPECT_VALUE_ERROR(
      from_config<DINAttention>(Json{{"activation", "tanh"}}),
      "[DINAttention.activation] an activation of DINAttention must be one of "
      "dice, prelu, relu, sigmoid, but got 'tanh'");
}

TEST(DINAttentionTest, RefusesBadInput) {
  EXPECT_VALUE_ERROR(
      DINAttention(DINAttentionOptions{.hidden_units = {}}),
      "[DINAttention] hidden_units must have 1 to 1023 sizes, but got 0");
  EXPECT_VALUE_ERROR(
      (DINAttention(DINAttentionOptions{.hidden_units = {3, -1}})),
      "[DINAttention] hidden_units[1] must be >= 1, but got -1");
  DINAttention layer;
  const at::Tensor query = at::ones({2, 3});
  const at::Tensor keys = at::ones({2, 4, 3});
  expect_refusals<std::array<at::Tensor, 3>>(
      {{{at::Tensor(), keys}, "[DINAttention] query: expected"},
       {{query, at::Tensor()}, "[DINAttention] keys: expected"},
       {{query, query},
        "[DINAttention] expected a query [batch, dim] and keys [batch, seq, "
        "dim] or [1, seq, dim], but got [2, 3] and [2, 3]"},
       {{query, at::ones({2, 4, 5})}, "but got [2, 3] and [2, 4, 5]"},
       {{query, at::ones({3, 4, 3})}, "but got [2, 3] and [3, 4, 3]"},
       {{at::ones({2, 0}), at::ones({2, 4, 0})},
        "but got [2, 0] and [2, 4, 0]"},
       {{query, keys, int64s({1, 2, 3})},
        "lengths must have the shape [batch], which is [2] for these keys, but "
        "got [3]"},
       {{query, keys, int64s({1, 2}).view({2, 1})}, "but got [2, 1]"},
       {{query, keys, int64s({1, -2})},
        "[DINAttention] lengths must be >= 0, but the smallest one is -2"}},
      [&](const auto& x) { layer->forward(x[0], x[1], x[2]); });
  EXPECT_TYPE_ERROR(
      layer->forward(query, keys.to(at::kDouble)),
      "query and keys must have the same dtype, but got Float and Double");
  EXPECT_TYPE_ERROR(
      layer->forward(query, keys.to(at::kLong)),
      "[DINAttention] keys: expected a dense floating-point tensor");
  EXPECT_TYPE_ERROR(
      layer->forward(query, keys, at::ones({2})),
      "[DINAttention] lengths must be int32 or int64, but got Float");
  EXPECT_FALSE(layer->input_shapes().has_value());
  EXPECT_VALUE_ERROR(
      layer->build(PartialShape{std::nullopt, 4, 3}),
      "[DINAttention] query must have the shape [batch, dim], but got [?, 4, 3]");

  layer->forward(query, keys);
  EXPECT_VALUE_ERROR(
      layer->forward(at::ones({2, 5}), at::ones({2, 4, 5})),
      "[DINAttention] was built for inputs [batch, ..., 3], but got [2, 5]");
  EXPECT_TYPE_ERROR(
      layer->forward(query.to(at::kDouble), keys.to(at::kDouble)),
      "[DINAttention] has parameters of Float, but got inputs of Double");
}

// The history of a user beside the candidates. The result must be that of the same history
// for each candidate.
TEST(DINAttentionTest, OneHistoryServesAllQueries) {
  for_each_kind([](DINAttention layer) {
    layer->eval();
    for (const int64_t candidates : {0, 1, 2, 4000}) {
      for (const std::optional<int64_t> length :
           {std::optional<int64_t>(),
            std::optional<int64_t>(0),
            std::optional<int64_t>(3),
            std::optional<int64_t>(9)}) {
        const at::Tensor query = at::randn({candidates, 4});
        const at::Tensor history = at::randn({1, 5, 4}).requires_grad_();
        const at::Tensor lengths = length ? int64s({*length}) : at::Tensor();
        const auto copies = [&](const at::Tensor& x) {
          return x.expand_as(at::ones({candidates}).view({-1, 1, 1}) * x);
        };
        const at::Tensor expected = layer->forward(
            query,
            copies(history),
            length ? at::full({candidates}, *length, at::kLong) : at::Tensor());
        const at::Tensor actual = layer->forward(query, history, lengths);
        EXPECT_TRUE(at::allclose(actual, expected, 1e-4, 1e-5));
        EXPECT_EQ(actual.sizes(), expected.sizes());
        {
          const at::NoGradGuard no_grad;  // in blocks of queries
          EXPECT_TRUE(at::allclose(
              layer->forward(query, history, lengths), expected, 1e-4, 1e-5));
        }
        if (candidates > 0 && length != 0) {
          const auto gradient = [&](const at::Tensor& result) {
            return torch::autograd::grad({result.square().sum()}, {history})[0];
          };
          EXPECT_TRUE(at::allclose(
              gradient(layer->forward(query, history, lengths)),
              gradient(expected),
              1e-3,
              1e-4));
        }
      }
    }
  });
}

}  // namespace tessera::test::din_attention_test
