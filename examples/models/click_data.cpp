// SPDX-License-Identifier: Apache-2.0
#include "examples/models/click_data.h"

#include <torch/types.h>

#include "examples/common/movielens_data.h"

namespace {

constexpr int64_t kBatch = 512;
constexpr int64_t kCategories = 10;
constexpr int64_t kUsers = 200;
constexpr int64_t kItems = 100;

tessera::Features features_of(
    const at::Tensor& user,
    const at::Tensor& item,
    const at::Tensor& history,
    const at::Tensor& lengths) {
  return {
      {"user", user},
      {"item", item},
      {"history", tessera::RaggedFeature::from_lengths(history, lengths)}};
}

// The hidden truth.
struct World {
  at::Tensor tastes = torch::randn({kUsers, 4});
  at::Tensor biases = 0.3 * torch::randn({kUsers});
  at::Tensor properties = 0.5 * torch::randn({kItems, 4});
  at::Tensor popularity = 0.5 * torch::randn({kItems});
};

Batch draw_batch(const World& world) {
  const auto user = torch::randint(kUsers, {kBatch});
  const auto item = torch::randint(kItems, {kBatch});
  const auto lengths = torch::randint(kHistory + 1, {kBatch});
  const auto history = torch::randint(kItems, {lengths.sum().item<int64_t>()});
  const auto example = torch::repeat_interleave(torch::arange(kBatch), lengths);
  const auto matches =
      (history % kCategories == item.index_select(0, example) % kCategories)
          .to(torch::kFloat);
  const auto has_match =
      torch::zeros({kBatch}).index_add(0, example, matches).gt(0);

  const auto affinity =
      (world.tastes.index({user}) * world.properties.index({item})).sum(1);
  const auto popularity = world.popularity.index({item});
  const auto stars = 3.5 + world.biases.index({user}) + popularity + affinity +
      0.3 * torch::randn({kBatch});
  const auto click =
      torch::sigmoid(popularity - 1.5 + 3.0 * has_match).bernoulli();
  const auto like = torch::sigmoid(popularity + 2.0 * affinity).bernoulli();
  return {
      features_of(user, item, history, lengths),
      torch::stack({stars, click, like}, 1)};
}

}  // namespace

ClickData generate_clicks(int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  const World world;
  ClickData data{.users = kUsers, .items = kItems};
  for (int i = 0; i < 220; ++i) {
    (i < 200 ? data.training : data.test).push_back(draw_batch(world));
  }
  return data;
}

ClickData read_ratings(const std::string& folder, int64_t seed) {
  const MovieLens movielens = load_movielens(folder);
  std::vector<int64_t> user_ids;
  std::vector<int64_t> item_ids;
  std::vector<float> all_stars;
  for (const MovieLens::Rating& rating : movielens.ratings) {
    user_ids.push_back(rating.user);
    item_ids.push_back(rating.movie);
    all_stars.push_back(rating.stars);
  }
  const auto users = torch::tensor(user_ids);
  const auto items = torch::tensor(item_ids);
  const auto stars = torch::tensor(all_stars).unsqueeze(1);
  const auto none = torch::empty({0}, torch::kLong);

  torch::manual_seed(static_cast<uint64_t>(seed));
  ClickData data{
      .users = static_cast<int64_t>(movielens.users.size()),
      .items = static_cast<int64_t>(movielens.movies.size())};
  const auto order = torch::randperm(users.size(0));
  const auto add = [&](const at::Tensor& part, std::vector<Batch>& batches) {
    for (const at::Tensor& rows : part.split(kBatch)) {
      const auto lengths = torch::zeros({rows.size(0)}, torch::kLong);
      batches.push_back(
          {features_of(users.index({rows}), items.index({rows}), none, lengths),
           stars.index({rows})});
    }
  };
  const int64_t held_out = users.size(0) / 10;
  add(order.slice(0, held_out), data.training);
  add(order.slice(0, 0, held_out), data.test);
  return data;
}
