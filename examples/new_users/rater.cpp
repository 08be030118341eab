// SPDX-License-Identifier: Apache-2.0
#include "examples/new_users/rater.h"

#include "examples/common/batches.h"
#include "examples/common/learning_rates.h"
#include "examples/common/movielens_features.h"

#include <tessera/tessera.h>

#include <utility>
#include <vector>

using torch::Tensor;

namespace {

// Settings were chosen among a few with --validation.
constexpr int64_t kFactors = 16;
// The weight of a rating's squared rows in the loss. In the sum over all ratings, each row
// then has this weight times the number of its ratings.
constexpr double kPenalty = 0.15;

std::pair<Tensor, Tensor> ids_of(const Ratings& ratings) {
  std::vector<int64_t> users, items;
  for (const Rating& rating : ratings) {
    users.push_back(rating.user);
    items.push_back(rating.item);
  }
  return {int64_tensor(users), int64_tensor(items)};
}

}  // namespace

Tensor Rater::predict(const Ratings& ratings) const {
  const torch::NoGradGuard no_grad;
  const auto [user_ids, item_ids] = ids_of(ratings);
  tessera::MatrixFactorization model(
      tessera::MatrixFactorizationOptions{.global_mean = mean});
  return model
      ->forward(
          {users.index_select(0, user_ids), items.index_select(0, item_ids)})
      .squeeze(1);
}

Rater train_rater(const RatingLists& train, int64_t num_items, int64_t seed) {
  constexpr int64_t kEpochs = 30;
  constexpr int64_t kBatch = 1000;
  torch::manual_seed(static_cast<uint64_t>(seed));
  const Ratings all = flatten(train);
  const auto rate = linear_decay_to_zero(
      0.02, kEpochs * number_of_batches(all.size(), kBatch));
  const auto table = [&](const char* name, int64_t rows) {
    return tessera::FeatureConfig{
        .table = tessera::make_table(
            {.name = name,
             .vocabulary_size = rows,
             .dim = 1 + kFactors,
             .initializer = tessera::initializers::Normal{.stddev = 0.05},
             .optimizer = tessera::optim::Adam{
                 .learning_rate = rate, .bias_correction = true}})};
  };
  tessera::TPUEmbedding embedding(tessera::TPUEmbeddingOptions{
      .features =
          {{"user", table("users", std::ssize(train))},
           {"item", table("items", num_items)}},
      .seed = static_cast<uint64_t>(seed)});
  const double mean = stars_of(all).mean().item<double>();
  tessera::MatrixFactorization model(
      tessera::MatrixFactorizationOptions{.global_mean = mean});
  model->named_parameters()["global_mean"].set_requires_grad(false);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (const Ratings& batch : in_batches(shuffled(all), kBatch)) {
      const auto [users, items] = ids_of(batch);
      const auto rows = embedding->forward({{"user", users}, {"item", items}});
      const Tensor errors = model->forward(rows).squeeze(1) - stars_of(batch);
      const Tensor squares =
          rows["user"].square().sum() + rows["item"].square().sum();
      const Tensor loss = (errors.square().sum() + kPenalty * squares) /
          static_cast<double>(batch.size());
      loss.backward();  // updates the tables; there are no other weights
    }
  }
  return {
      .users = embedding->read_rows("users", 0, std::ssize(train)),
      .items = embedding->read_rows("items", 0, num_items),
      .mean = mean};
}

Tensor fold_in_rows(
    const Tensor& known,
    double mean,
    const tessera::RaggedFeature& ids,
    const Tensor& stars,
    const Tensor& priors) {
  Tensor factors = known.clone();
  factors.select(1, 0).fill_(1.0);  // stands for the bias of the new row
  const tessera::FoldIn fold_in(
      factors,
      {.regularization = 3.0, .regularization_per_item = kPenalty},
      known.select(1, 0) + mean);
  return fold_in.solve(ids, {.targets = stars, .priors = priors});
}
