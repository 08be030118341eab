// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of the sequence models, which check_docs.cmake compares
// with them.
#include <tessera/tessera.h>
#include <torch/nn/functional/loss.h>

#include "tests/test_util.h"

namespace tessera::reference_sasrec_test {

TEST(SASRecReferenceTest, CausalSelfAttentionImpl) {
  // snippet: CausalSelfAttentionImpl
  CausalSelfAttention attention(CausalSelfAttentionOptions{.num_heads = 2});
  const auto x = torch::randn({5, 8});  // two sequences, of 3 and 2 positions
  const auto attended = attention->forward(x, torch::tensor({0, 3, 5}));
  // end snippet
  EXPECT_EQ(attended.sizes(), x.sizes());
}

TEST(SASRecReferenceTest, TransformerBlockImpl) {
  // snippet: TransformerBlockImpl
  TransformerBlock block(
      TransformerBlockOptions{.num_heads = 2, .dropout = 0.2});
  const auto x = torch::randn({5, 8});  // two sequences, of 3 and 2 positions
  const auto y = block->forward(x, torch::tensor({0, 3, 5}));
  // end snippet
  EXPECT_EQ(y.sizes(), x.sizes());
}

TEST(SASRecReferenceTest, LinearCrossEntropy) {
  const auto states = torch::randn({3, 4}).requires_grad_();
  const auto rows = torch::randn({10, 4}).requires_grad_();
  // snippet: linear_cross_entropy
  const auto loss =
      linear_cross_entropy(states, rows, torch::tensor({7, 0, 9}));
  loss.backward();
  // end snippet
  test::expect_close(
      loss,
      torch::nn::functional::cross_entropy(
          states.matmul(rows.t()), torch::tensor({7, 0, 9})));
}

TEST(SASRecReferenceTest, SampledLinearCrossEntropy) {
  const auto states = torch::randn({3, 4}).requires_grad_();
  const auto rows = torch::randn({10, 4}).requires_grad_();
  const auto items = torch::tensor({7, 0, 9});
  // snippet: sampled_linear_cross_entropy
  const auto sampled = torch::randint(10, {4}, torch::kLong);
  const auto loss = sampled_linear_cross_entropy(
      states,
      rows.index_select(0, items),
      rows.index_select(0, sampled),
      items,
      sampled);
  loss.backward();
  // end snippet
  EXPECT_GE(loss.item<double>(), 0.0);
}

TEST(SASRecReferenceTest, SASRecImpl) {
  // snippet: SASRecImpl
  SASRec model(SASRecOptions{
      .num_items = 1000,
      .dim = 16,
      .max_length = 50,
      .block = {.num_heads = 2, .dropout = 0.2},
      .optimizer = optim::Adam{.learning_rate = 0.003}});
  torch::optim::Adam optimizer(model->parameters(), 0.003);
  // Two users: 7, 8, 9, then 10, and 3, then 5.
  const RaggedFeature sequences{
      .values = torch::tensor({7, 8, 9, 3}),
      .row_splits = torch::tensor({0, 3, 4})};
  const auto targets = torch::tensor({8, 9, 10, 5});

  model->softmax_loss(sequences, targets).backward();  // updates the items
  optimizer.step();

  const auto index = make_exact_index(model->item_vectors());
  const TopK next = index->search(model->queries(sequences), 10, sequences);
  // end snippet
  EXPECT_EQ(next.ids.sizes(), torch::IntArrayRef({2, 10}));
}

TEST(SASRecReferenceTest, SequenceFilterOptions) {
  // snippet: SequenceFilterOptions
  SASRec model(SASRecOptions{
      .num_items = 1000,
      .max_length = 50,
      .block =
          {.norm = NormOrder::kPost,
           .filter = SequenceFilterOptions{.share = 0.7, .length = 50}},
      .one_target = true,
      .optimizer = optim::Adam{.learning_rate = 0.001}});
  // The beginnings of the history 7, 8, 9: 7, then 8, and 7, 8, then 9.
  const RaggedFeature sequences{
      .values = torch::tensor({7, 7, 8}),
      .row_splits = torch::tensor({0, 1, 3})};
  model->softmax_loss(sequences, torch::tensor({8, 9})).backward();
  // end snippet
  EXPECT_EQ(model->forward(sequences).sizes(), torch::IntArrayRef({2, 64}));
}

TEST(SASRecReferenceTest, SimpleXImpl) {
  // snippet: SimpleXImpl
  SimpleX model(SimpleXOptions{
      .num_users = 100,
      .num_items = 1000,
      .dim = 16,
      .optimizer = optim::Adam{.learning_rate = 0.001}});
  torch::optim::Adam optimizer(model->parameters(), 0.001);
  // User 4 has the items 7, 8 and 9, and user 2 has 3 and 5.
  const auto users = torch::tensor({4, 2});
  const RaggedFeature items{
      .values = torch::tensor({7, 8, 9, 3, 5}),
      .row_splits = torch::tensor({0, 3, 5})};
  const auto negatives = torch::randint(1000, {50}, torch::kLong);

  // Each item is an example: its user should prefer it to the negatives.
  const auto loss = model->sampled_softmax_loss(users, items, items, negatives);
  loss.backward();  // updates the tables
  optimizer.step();

  const auto index = make_exact_index(model->item_vectors());
  const TopK found = index->search(model->queries(users, items), 10, items);
  // end snippet
  EXPECT_EQ(found.ids.sizes(), torch::IntArrayRef({2, 10}));
}

}  // namespace tessera::reference_sasrec_test
