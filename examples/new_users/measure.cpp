// SPDX-License-Identifier: Apache-2.0
#include "examples/new_users/measure.h"

#include "examples/new_users/rankers.h"
#include "examples/new_users/rater.h"

#include <tessera/search/top_k_index.h>
#include <tessera/tessera.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>

namespace training = tessera::training;
using torch::Tensor;

namespace {

// The number of users from which a new item is folded in.
struct KnownUsers {
  const char* name;
  size_t max_users;
};
constexpr KnownUsers kKnownUsers[] = {
    {"its genres", 0},
    {"5 of its users", kFewUsers},
    {"20 of its users", kMoreUsers},
    {"all of its users", std::numeric_limits<size_t>::max()}};

// Random training users of each held-out item.
RatingLists users_of_items(
    const Split& split,
    const HeldOut& items,
    size_t max_users,
    int64_t seed) {
  RatingLists lists =
      lists_of(by_item(split.train, split.num_items), items.ids);
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  for (Ratings& ratings : lists) {
    std::shuffle(ratings.begin(), ratings.end(), random);
    ratings.resize(std::min(ratings.size(), max_users));
  }
  return lists;
}

// For each held-out item, the mean over its genres of the mean vector of the genre. Items
// without ratings have no trained vector, and do not count.
Tensor vectors_of_genres(
    const Split& split,
    const HeldOut& items,
    const Tensor& vectors,
    const RatingLists& train) {
  Tensor is_trained = torch::zeros({split.num_items, 1});
  const RatingLists ratings = by_item(train, split.num_items);
  for (int64_t item = 0; item < split.num_items; ++item) {
    is_trained[item] = ratings[item].empty() ? 0.0 : 1.0;
  }
  const Tensor shares = (split.genres * is_trained).t();  // [genres, items]
  const Tensor means =
      shares.matmul(vectors) / shares.sum(1, /*keepdim=*/true).clamp_min(1e-6);
  return split.genres.index_select(0, torch::tensor(items.ids)).matmul(means);
}

Values rmse(const Rater& model, const Ratings& test) {
  const Tensor errors = model.predict(test) - stars_of(test);
  return {{"RMSE", errors.square().mean().sqrt().item<double>()}};
}

// Finds the first 20 items for each user, without those that the user has seen.
Tensor search(
    const tessera::TopKIndex& index,
    const Tensor& users,
    const RatingLists& seen) {
  return index
      .search(users, std::min<int64_t>(20, index.size()), items_of(seen))
      .ids;
}

// The mean over the users who have test items.
template <class Metric>
double mean_of(int64_t k, const Tensor& found, const RatingLists& test) {
  Metric metric({.k = k, .skip_queries_without_relevant = true});
  metric.update_ragged(found, items_of(test));
  return metric.result();
}

Values user_ranking(
    const Tensor& users,
    const Tensor& items,
    const RatingLists& seen,
    const RatingLists& test) {
  const auto index = tessera::make_exact_index(items);
  const Tensor found = search(*index, users, seen);
  return {
      {"recall@10", mean_of<training::RecallAtK>(10, found, test)},
      {"recall@20", mean_of<training::RecallAtK>(20, found, test)},
      {"NDCG@10", mean_of<training::NDCG>(10, found, test)}};
}

Values item_ranking(
    const Tensor& users,
    const Tensor& items,
    const Split& split,
    const HeldOut& new_items) {
  const RatingLists test = of_items(split.test, new_items);
  const Tensor ids = torch::tensor(new_items.ids);
  const auto index = tessera::make_exact_index(items);
  const auto new_index =
      tessera::make_exact_index(items.index_select(0, ids), ids);
  const Tensor found = search(*index, users, split.train);
  const Tensor found_new = search(*new_index, users, split.train);
  return {
      {"recall@10 of new", mean_of<training::RecallAtK>(10, found_new, test)},
      {"recall@20 of all", mean_of<training::RecallAtK>(20, found, test)}};
}

Result measure_rater(
    const Split& split,
    const HoldOuts& held_out,
    int64_t seed) {
  const auto& [users, items] = held_out;
  Result result;
  const Rater whole = train_rater(split.train, split.num_items, seed);

  const Ratings user_test = flatten(lists_of(split.test, users.ids));
  const RatingLists own = lists_of(split.train, users.ids);
  const Tensor user_ids = torch::tensor(users.ids);
  Rater model =
      train_rater(without_users(split.train, users), split.num_items, seed);
  model.users.index_copy_(
      0,
      user_ids,
      fold_in_rows(
          model.items, model.mean, items_of(own), stars_of(flatten(own)), {}));
  result.users = {
      {"in training", rmse(whole, user_test)},
      {"folded in", rmse(model, user_test), true}};
  model.users.index_fill_(0, user_ids, 0.0);
  result.users.push_back({"movie biases", rmse(model, user_test)});

  const Ratings item_test = flatten(of_items(split.test, items));
  const RatingLists train = without_items(split.train, items);
  const Tensor item_ids = torch::tensor(items.ids);
  model = train_rater(train, split.num_items, seed);
  const Tensor priors = vectors_of_genres(split, items, model.items, train);
  result.items.push_back({"in training", rmse(whole, item_test)});
  for (const auto& [name, max_users] : kKnownUsers) {
    const RatingLists given = users_of_items(split, items, max_users, seed);
    model.items.index_copy_(
        0,
        item_ids,
        fold_in_rows(
            model.users,
            model.mean,
            users_of(given),
            stars_of(flatten(given)),
            priors));
    result.items.push_back({name, rmse(model, item_test), max_users > 0});
  }
  model.items.index_fill_(0, item_ids, 0.0);
  result.items.push_back({"user biases", rmse(model, item_test)});
  return result;
}

Result measure_ranker(
    const RankerKind& kind,
    const Split& split,
    const HoldOuts& held_out,
    int64_t seed) {
  const auto& [users, items] = held_out;
  Result result;
  const Ranker whole = kind.train(split.train, split.num_items, seed);

  const RatingLists own = lists_of(split.train, users.ids);
  const RatingLists user_test = lists_of(split.test, users.ids);
  Ranker model =
      kind.train(without_users(split.train, users), split.num_items, seed);
  const Tensor vectors = model.tower
      ? model.tower(own)
      : tessera::FoldIn(model.items, kind.new_users).solve(items_of(own));
  result.users = {
      {"in training",
       user_ranking(
           whole.users.index_select(0, torch::tensor(users.ids)),
           whole.items,
           own,
           user_test)},
      {model.tower ? "from the history" : "folded in",
       user_ranking(vectors, model.items, own, user_test),
       true}};

  const RatingLists train = without_items(split.train, items);
  model = kind.train(train, split.num_items, seed);
  const Tensor priors = vectors_of_genres(split, items, model.items, train);
  result.items.push_back(
      {"in training", item_ranking(whole.users, whole.items, split, items)});
  const tessera::FoldIn fold_in(model.users, kind.new_items);
  for (const auto& [name, max_users] : kKnownUsers) {
    // Without users, the vectors of the genres are no solution, because the catalogue
    // counts as users who don't have the item.
    Tensor rows = max_users == 0
        ? priors
        : fold_in.solve(
              users_of(users_of_items(split, items, max_users, seed)),
              {.priors = priors});
    if (kind.has_unit_vectors) {
      rows = torch::nn::functional::normalize(rows);
    }
    model.items.index_copy_(0, torch::tensor(items.ids), rows);
    result.items.push_back(
        {name,
         item_ranking(model.users, model.items, split, items),
         max_users > 0});
  }
  return result;
}

// A movie's vector is its number of ratings, and each user's vector is 1.
Result measure_popularity(const Split& split, const HoldOuts& held_out) {
  const auto& [users, items] = held_out;
  const auto counts_of = [&](const RatingLists& lists) {
    Tensor counts = torch::zeros({split.num_items, 1});
    for (const Rating& rating : flatten(lists)) {
      counts[rating.item] += 1.0;
    }
    return counts;
  };
  const RatingLists own = lists_of(split.train, users.ids);
  return {
      .users =
          {{"the same for all users",
            user_ranking(
                torch::ones({std::ssize(own), 1}),
                counts_of(without_users(split.train, users)),
                own,
                lists_of(split.test, users.ids))}},
      .items = {
          {"all of its users",
           item_ranking(
               torch::ones({split.num_users, 1}),
               counts_of(split.train),
               split,
               items)}}};
}

std::vector<Candidate> make_candidates() {
  std::vector<Candidate> candidates{
      {.name = "popularity",
       .title = "popularity",
       .measure =
           [](const Split& split, const HoldOuts& held_out, int64_t /*seed*/) {
             return measure_popularity(split, held_out);
           }},
      {.name = "mf",
       .title = "matrix factorization of stars",
       .measure = measure_rater}};
  for (const RankerKind& kind : ranker_kinds()) {
    candidates.push_back(
        {.name = kind.name,
         .title = kind.title,
         .measure =
             [&](const Split& split, const HoldOuts& held_out, int64_t seed) {
               return measure_ranker(kind, split, held_out, seed);
             }});
  }
  return candidates;
}

}  // namespace

const std::vector<Candidate>& all_candidates() {
  static const std::vector<Candidate> candidates = make_candidates();
  return candidates;
}
