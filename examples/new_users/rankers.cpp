// SPDX-License-Identifier: Apache-2.0
#include "examples/new_users/rankers.h"

#include "examples/common/batches.h"
#include "examples/common/learning_rates.h"

#include <tessera/tessera.h>

#include <algorithm>
#include <cstddef>

namespace optim = tessera::optim;
using torch::Tensor;

namespace {

// Settings were chosen among a few with --validation.
constexpr int64_t kDim = 64;
constexpr int64_t kUsersOfBatch = 32;

// Users with ratings, whose vectors are trained.
std::vector<int64_t> users_with_ratings(const RatingLists& lists) {
  std::vector<int64_t> users;
  for (size_t user = 0; user < lists.size(); ++user) {
    if (!lists[user].empty()) {
      users.push_back(static_cast<int64_t>(user));
    }
  }
  return users;
}

// The Adam of torch::optim.
optim::Adam adam(const optim::LearningRate& rate) {
  return {
      .learning_rate = rate,
      .epsilon = 1e-8,
      .lazy_adam = false,
      .sum_inside_sqrt = false,
      .bias_correction = true};
}

// --- implicit matrix factorization -------------------------------------------

constexpr tessera::FoldInOptions kFactorization{
    .regularization = 5.0,
    .catalogue_confidence = 0.3};

// Alternating least squares. Each step folds all users in from the items, or all items from
// the users.
Ranker train_factorization(
    const RatingLists& train,
    int64_t num_items,
    int64_t seed) {
  constexpr int64_t kEpochs = 15;
  torch::manual_seed(static_cast<uint64_t>(seed));
  const auto histories = items_of(train);
  const auto item_users = users_of(by_item(train, num_items));
  Ranker model{.items = 0.1 * torch::randn({num_items, kDim})};
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    model.users = tessera::FoldIn(model.items, kFactorization).solve(histories);
    model.items =
        tessera::FoldIn(model.users, kFactorization).solve(item_users);
  }
  model.users = tessera::FoldIn(model.items, kFactorization).solve(histories);
  return model;
}

// --- SimpleX -----------------------------------------------------------------

// Each user of a batch is trained with all items of the user.
Ranker train_simplex(
    const RatingLists& train,
    int64_t num_items,
    int64_t seed,
    double user_share) {
  constexpr int64_t kEpochs = 20;
  constexpr double kRate = 0.003;
  constexpr double kTemperature = 0.2;
  constexpr int64_t kNegatives = 512;
  torch::manual_seed(static_cast<uint64_t>(seed));
  const std::vector<int64_t> users = users_with_ratings(train);
  tessera::SimpleX model(tessera::SimpleXOptions{
      .num_users = std::ssize(train),
      .num_items = num_items,
      .dim = kDim,
      .user_share = user_share,
      .optimizer = adam(linear_decay_to_zero(
          kRate, kEpochs * number_of_batches(users.size(), kUsersOfBatch))),
      .seed = static_cast<uint64_t>(seed)});
  torch::optim::Adam optimizer(model->parameters(), 0.001);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (const auto& batch : in_batches(shuffled(users), kUsersOfBatch)) {
      const auto items = items_of(lists_of(train, batch));
      optimizer.zero_grad();
      model
          ->sampled_softmax_loss(
              torch::tensor(batch),
              items,
              items,
              torch::randint(num_items, {kNegatives}, torch::kLong),
              kTemperature)
          .backward();
      optimizer.step();
    }
  }
  Ranker result{
      .users = model->queries(
          torch::arange(std::ssize(train), torch::kLong), items_of(train)),
      .items = model->item_vectors()};
  if (user_share == 0.0) {
    result.tower = [model](const RatingLists& lists) mutable {
      // The row of user 0 has no share in the result.
      return model->queries(
          torch::zeros({std::ssize(lists)}, torch::kLong), items_of(lists));
    };
  }
  return result;
}

// --- SASRec ------------------------------------------------------------------

constexpr size_t kMaxLength = 200;

Ratings latest(const Ratings& ratings) {
  return {
      ratings.end() -
          static_cast<std::ptrdiff_t>(std::min(kMaxLength, ratings.size())),
      ratings.end()};
}

Ranker train_sasrec(const RatingLists& train, int64_t num_items, int64_t seed) {
  constexpr int64_t kEpochs = 40;
  constexpr double kRate = 0.003;
  torch::manual_seed(static_cast<uint64_t>(seed));
  tessera::SASRec model(tessera::SASRecOptions{
      .num_items = num_items,
      .dim = kDim,
      .max_length = static_cast<int64_t>(kMaxLength),
      .block = {.num_heads = 2, .dropout = 0.5},
      .temperature = 0.1,
      .optimizer = adam(kRate),
      .seed = static_cast<uint64_t>(seed)});
  torch::optim::Adam optimizer(model->parameters(), kRate);
  std::vector<int64_t> users = users_with_ratings(train);
  std::erase_if(users, [&](int64_t user) { return train[user].size() < 2; });
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (const auto& batch : in_batches(shuffled(users), kUsersOfBatch)) {
      RatingLists inputs, targets;
      for (const int64_t user : batch) {
        const Ratings& all = train[user];
        inputs.push_back(latest({all.begin(), all.end() - 1}));
        targets.push_back(latest({all.begin() + 1, all.end()}));
      }
      optimizer.zero_grad();
      model->softmax_loss(items_of(inputs), items_of(targets).values)
          .backward();
      optimizer.step();
    }
  }
  model->eval();
  const std::function<Tensor(const RatingLists&)> tower =
      [model](const RatingLists& lists) mutable {
        // An empty sequence has no last position, so its vector is zero.
        const std::vector<int64_t> users = users_with_ratings(lists);
        RatingLists sequences;
        for (const int64_t user : users) {
          sequences.push_back(latest(lists[user]));
        }
        Tensor result = torch::zeros({std::ssize(lists), kDim});
        if (!users.empty()) {
          result.index_copy_(
              0, torch::tensor(users), model->queries(items_of(sequences)));
        }
        return result;
      };
  return {
      .users = tower(train), .items = model->item_vectors(), .tower = tower};
}

}  // namespace

const std::vector<RankerKind>& ranker_kinds() {
  // A compromise between few users and many.
  constexpr tessera::FoldInOptions kItemsOfCosines{
      .regularization = 10.0, .catalogue_confidence = 0.3};
  static const std::vector<RankerKind> kinds{
      {.name = "als",
       .title = "implicit matrix factorization",
       .has_unit_vectors = false,
       .new_users = kFactorization,
       .new_items = kFactorization,
       .train = train_factorization},
      {.name = "simplex",
       .title = "SimpleX, a row for each user",
       .has_unit_vectors = true,
       .new_users = {.regularization = 30.0, .catalogue_confidence = 0.1},
       .new_items = kItemsOfCosines,
       .train =
           [](const RatingLists& train, int64_t num_items, int64_t seed) {
             return train_simplex(train, num_items, seed, 1.0);
           }},
      {.name = "simplex-items",
       .title = "SimpleX, only the user's items",
       .has_unit_vectors = true,
       .new_users = {},
       .new_items = kItemsOfCosines,
       .train =
           [](const RatingLists& train, int64_t num_items, int64_t seed) {
             return train_simplex(train, num_items, seed, 0.0);
           }},
      {.name = "sasrec",
       .title = "SASRec",
       .has_unit_vectors = true,
       .new_users = {},
       .new_items = kItemsOfCosines,
       .train = train_sasrec}};
  return kinds;
}
