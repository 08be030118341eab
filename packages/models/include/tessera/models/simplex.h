// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/engine/strategy.h>
#include <tessera/features/feature.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/models/sampled_losses.h>
#include <tessera/optim/optimizer.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// The config of a SimpleX model.
struct SimpleXOptions {
  /// Users have the ids 0 to num_users - 1.
  int64_t num_users = 0;
  /// Items have the ids 0 to num_items - 1.
  int64_t num_items = 0;
  int64_t dim = 64;
  /// The share of the user's own row in the user's vector, in [0, 1]. The rest comes from
  /// the user's items. With 1, the model is a matrix factorization with cosines. Then
  /// histories are not looked up, and their ids are not checked.
  double user_share = 0.5;
  /// The fused optimizer of both tables. If unset, they can't be trained on
  /// Strategy::fused().
  std::optional<optim::OptimizerSpec> optimizer = {};
  Strategy strategy = Strategy::fused();
  /// The dtypes of both tables, as TableConfig::dtype and TableConfig::slot_dtype.
  at::ScalarType dtype = at::kFloat;
  at::ScalarType slot_dtype = at::kFloat;
  /// The seed of the tables' initial values. torch::manual_seed() determines the initial
  /// projection.
  uint64_t seed = 0;

  bool operator==(const SimpleXOptions&) const = default;

  TESSERA_FIELDS(
      num_users,
      num_items,
      dim,
      user_share,
      optimizer,
      strategy,
      dtype,
      slot_dtype,
      seed)
};

// snippet: tests/docs/reference_sasrec_test.cpp SimpleXImpl
/// SimpleX: finds new items for a user by the cosine of two vectors. The user's vector
/// comes from the user's own row and from the mean of the user's items.
///
///   SimpleX model(SimpleXOptions{
///       .num_users = 100,
///       .num_items = 1000,
///       .dim = 16,
///       .optimizer = optim::Adam{.learning_rate = 0.001}});
///   torch::optim::Adam optimizer(model->parameters(), 0.001);
///   // User 4 has the items 7, 8 and 9, and user 2 has 3 and 5.
///   const auto users = torch::tensor({4, 2});
///   const RaggedFeature items{
///       .values = torch::tensor({7, 8, 9, 3, 5}),
///       .row_splits = torch::tensor({0, 3, 5})};
///   const auto negatives = torch::randint(1000, {50}, torch::kLong);
///
///   // Each item is an example: its user should prefer it to the negatives.
///   const auto loss = model->sampled_softmax_loss(users, items, items, negatives);
///   loss.backward();  // updates the tables
///   optimizer.step();
///
///   const auto index = make_exact_index(model->item_vectors());
///   const TopK found = index->search(model->queries(users, items), 10, items);
///
/// The vectors and the score of a user and an item:
///
///   user_vector = user_share * users[user]
///               + (1 - user_share) * projection(mean of items[i] for i in history)
///   score       = cosine(user_vector, items[item])
///
/// The mean of no items is 0.
///
/// Both tables are updated by backward(). The projection is in parameters() for any
/// torch::optim. The paper's loss is cosine_contrastive_loss() of scores().
///
/// Parts:   `tables` (TPUEmbedding with `users` and `items`, normal with stddev 0.01),
///          `projection` (Linear without bias).
/// Shapes:  users [batch]; histories and positives ragged [batch]; negatives
///          [num_negatives].
/// Errors:  c10::ValueError for options out of range, shapes, and sizes that differ;
///          c10::IndexError for ids out of range; c10::TypeError for wrong dtypes. Nothing
///          is changed.
/// Source:  Mao et al. 2021, arXiv:2109.12613.
/// Differs: the paper draws negatives for each example.
class SimpleXImpl : public LayerImpl<SimpleXImpl, SimpleXOptions> {
 public:
  static constexpr const char* kClassName = "SimpleX";

  explicit SimpleXImpl(SimpleXOptions options);

  /// The vector of each user, of length 1, [batch, dim].
  at::Tensor forward(const at::Tensor& users, const RaggedFeature& histories);

  /// The scores of each positive item, and of all negatives for its user. `positives` has
  /// a bag of items for each user. The result has the ids of both sides, so that a loss can
  /// leave out accidental hits. A negative that is in the user's history counts, too.
  SampledScores scores(
      const at::Tensor& users,
      const RaggedFeature& histories,
      const RaggedFeature& positives,
      const at::Tensor& negatives);

  /// sampled_softmax_loss() of scores(), computed by sampled_linear_cross_entropy().
  at::Tensor sampled_softmax_loss(
      const at::Tensor& users,
      const RaggedFeature& histories,
      const RaggedFeature& positives,
      const at::Tensor& negatives,
      double temperature = 0.1);

  /// The vectors of users, as forward() gives them, without gradients. They are the
  /// queries for a TopKIndex of item_vectors().
  at::Tensor queries(const at::Tensor& users, const RaggedFeature& histories);

  /// A copy of the items' rows, each of length 1, [num_items, dim].
  at::Tensor item_vectors() const;

  void reset() override;

  TPUEmbedding tables{nullptr};

 private:
  at::Tensor checked_splits(
      const RaggedFeature& bags,
      const char* name,
      int64_t batch) const;
  // Vectors of length 1. `users` has one row for each user in vectors_of(), and one for each
  // positive item in vectors_of_examples().
  struct Vectors {
    at::Tensor users;
    at::Tensor positives;
    at::Tensor negatives;
  };
  Vectors vectors_of(
      const at::Tensor& users,
      const RaggedFeature& histories,
      const at::Tensor& positives,
      const at::Tensor& negatives);
  Vectors vectors_of_examples(
      const at::Tensor& users,
      const RaggedFeature& histories,
      const RaggedFeature& positives,
      const at::Tensor& negatives);

  torch::nn::Linear projection_{nullptr};
};

using SimpleX = LayerHolder<SimpleXImpl>;

}  // namespace tessera
