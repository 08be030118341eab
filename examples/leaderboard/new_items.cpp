// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/new_items.h"

#include "examples/common/batches.h"
#include "examples/common/item_neighbors.h"
#include "examples/common/learning_rates.h"
#include "examples/common/stopwatch.h"

#include <tessera/search/top_k_index.h>
#include <tessera/tessera.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

namespace optim = tessera::optim;
namespace training = tessera::training;

namespace {

constexpr int64_t kFirst = 20;

// Adds up the ranks of users' test items.
class Sum {
 public:
  // `found` are the first items of the ranking.
  template <class Items>
  void add(const Items& found, const std::vector<int64_t>& test) {
    double hits = 0.0;
    double gain = 0.0;
    double best = 0.0;
    for (size_t rank = 0; rank < std::min<size_t>(kFirst, test.size());
         ++rank) {
      best += gain_at(rank);
    }
    size_t rank = 0;
    for (const int64_t item : found) {
      if (std::find(test.begin(), test.end(), item) != test.end()) {
        hits += 1.0;
        gain += gain_at(rank);
      }
      ++rank;
    }
    recall_ += hits / static_cast<double>(test.size());
    ndcg_ += gain / best;
    users_ += 1.0;
  }

  NewItemRanking mean() const {
    return {.recall = recall_ / users_, .ndcg = ndcg_ / users_};
  }

 private:
  static double gain_at(size_t rank) {
    return 1.0 / std::log2(static_cast<double>(rank) + 2.0);
  }

  double recall_ = 0.0;
  double ndcg_ = 0.0;
  double users_ = 0.0;
};

tessera::RaggedFeature bags_of(
    const std::vector<std::vector<int64_t>>& lists,
    const std::vector<int64_t>& which) {
  std::vector<int64_t> ids;
  std::vector<int64_t> splits{0};
  for (const int64_t i : which) {
    ids.insert(ids.end(), lists[i].begin(), lists[i].end());
    splits.push_back(std::ssize(ids));
  }
  return {torch::tensor(ids, torch::kLong), torch::tensor(splits)};
}

std::vector<int64_t> users_with_test(const Interactions& data) {
  std::vector<int64_t> users;
  for (int64_t user = 0; user < data.num_users(); ++user) {
    if (!data.test[user].empty()) {
      users.push_back(user);
    }
  }
  return users;
}

NewItemRanking ranking_of(tessera::SimpleX& model, const Interactions& data) {
  const auto index = tessera::make_exact_index(model->item_vectors());
  Sum sum;
  constexpr int64_t kUsers = 4096;
  for (const auto& users : in_batches(users_with_test(data), kUsers)) {
    const tessera::RaggedFeature items = bags_of(data.train, users);
    const tessera::TopK found = index->search(
        model->queries(torch::tensor(users), items),
        std::min(kFirst, index->size()),
        items);
    const auto ids = found.ids.accessor<int64_t, 2>();
    for (size_t i = 0; i < users.size(); ++i) {
      const int64_t* first = ids[static_cast<int64_t>(i)].data();
      sum.add(
          std::vector(first, first + found.ids.size(1)), data.test[users[i]]);
    }
  }
  return sum.mean();
}

// A training item of a user.
struct Pair {
  int64_t user = 0;
  int64_t item = 0;
};

std::vector<Pair> pairs_of(const Interactions& data) {
  std::vector<Pair> pairs;
  for (int64_t user = 0; user < data.num_users(); ++user) {
    for (const int64_t item : data.train[user]) {
      pairs.push_back({.user = user, .item = item});
    }
  }
  return pairs;
}

// The users of a batch, each once, with their items in the batch.
struct Batch {
  std::vector<int64_t> users = {};
  std::vector<std::vector<int64_t>> items = {};
};

Batch batch_of(std::vector<Pair> pairs) {
  std::stable_sort(
      pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
        return a.user < b.user;
      });
  Batch batch;
  for (const Pair& pair : pairs) {
    if (batch.users.empty() || batch.users.back() != pair.user) {
      batch.users.push_back(pair.user);
      batch.items.emplace_back();
    }
    batch.items.back().push_back(pair.item);
  }
  return batch;
}

// Measures the time of the steps, and ranks the test items after each epoch.
class Curve : public training::Callback {
 public:
  Curve(
      tessera::SimpleX model,
      const Interactions& data,
      bool with_curve,
      NewItemRun& run)
      : model_(std::move(model)),
        data_(data),
        with_curve_(with_curve),
        run_(run) {}

  std::vector<std::string> log_names() const override {
    return with_curve_ ? std::vector<std::string>{"ndcg"}
                       : std::vector<std::string>{};
  }
  void on_epoch_begin(training::Training& /*training*/) override {
    watch_ = {};
  }
  void on_epoch_end(training::Training& training) override {
    run_.seconds += watch_.seconds();
    if (with_curve_) {
      const double ndcg = ranking_of(model_, data_).ndcg;
      run_.curve.push_back({.seconds = run_.seconds, .value = ndcg});
      training.log("ndcg", ndcg);
    }
  }

 private:
  tessera::SimpleX model_;
  const Interactions& data_;
  bool with_curve_;
  NewItemRun& run_;
  Stopwatch watch_;
};

// The items of all users by the number of their users, most first.
std::vector<int64_t> by_popularity(const Interactions& data) {
  std::vector<int64_t> counts(static_cast<size_t>(data.num_items), 0);
  for (const Pair& pair : pairs_of(data)) {
    ++counts[pair.item];
  }
  std::vector<int64_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return counts[a] > counts[b];
  });
  return order;
}

}  // namespace

tessera::Json json_of(const NewItemOptions& options) {
  return {
      {"loss", "sampled softmax of cosines"},
      {"dim", options.dim},
      {"user_share", options.user_share},
      {"negatives", options.negatives},
      {"temperature", options.temperature},
      {"batch", options.batch},
      {"learning_rate", options.learning_rate},
      {"epochs", options.epochs}};
}

training::History train_simplex(
    const Interactions& data,
    const NewItemOptions& options,
    int64_t seed,
    bool with_curve,
    NewItemRun& run) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  const std::vector<Pair> pairs = pairs_of(data);
  const auto rate = linear_decay_to_zero(
      options.learning_rate,
      options.epochs * number_of_batches(pairs.size(), options.batch));
  tessera::SimpleX model(tessera::SimpleXOptions{
      .num_users = data.num_users(),
      .num_items = data.num_items,
      .dim = options.dim,
      .user_share = options.user_share,
      .optimizer =
          optim::Adam{
              .learning_rate = rate,
              .epsilon = 1e-8,
              .sum_inside_sqrt = false,
              .bias_correction = true},
      .seed = static_cast<uint64_t>(seed)});
  torch::optim::Adam optimizer(model->parameters(), options.learning_rate);
  const auto loss_of = [&](const std::vector<Pair>& batch_pairs) {
    const Batch batch = batch_of(batch_pairs);
    std::vector<int64_t> all(batch.users.size());
    std::iota(all.begin(), all.end(), 0);
    return training::StepResult{
        .loss = model->sampled_softmax_loss(
            torch::tensor(batch.users),
            bags_of(data.train, batch.users),
            bags_of(batch.items, all),
            torch::randint(data.num_items, {options.negatives}, torch::kLong),
            options.temperature),
        .examples = std::ssize(batch_pairs)};
  };
  NewItemRun result;
  training::History history = training::fit(
      [&] { return in_batches(shuffled(pairs), options.batch); },
      training::make_train_step(optimizer, loss_of),
      {.epochs = options.epochs,
       .model = model,
       .callbacks = {
           std::make_shared<training::LearningRateScheduler>(optimizer, rate),
           std::make_shared<Curve>(model, data, with_curve, result),
           std::make_shared<training::ProgressBar>()}});
  if (history.stop_signal() == 0) {
    const Stopwatch watch;
    result.test = ranking_of(model, data);
    result.evaluation_seconds = watch.seconds();
    run = std::move(result);
  }
  return history;
}

NewItemRanking ranking_by_popularity(const Interactions& data) {
  const std::vector<int64_t> order = by_popularity(data);
  Sum sum;
  for (const int64_t user : users_with_test(data)) {
    const std::vector<int64_t>& own = data.train[user];
    std::vector<int64_t> found;
    for (size_t i = 0; i < order.size() && std::ssize(found) < kFirst; ++i) {
      if (std::find(own.begin(), own.end(), order[i]) == own.end()) {
        found.push_back(order[i]);
      }
    }
    sum.add(found, data.test[user]);
  }
  return sum.mean();
}

NewItemRanking ranking_by_neighbors(const Interactions& data) {
  constexpr size_t kMaxNeighbors = 200;
  const Neighbors neighbors =
      nearest_neighbors(data.train, data.num_items, kMaxNeighbors);
  Sum sum;
  std::vector<double> scores(neighbors.size(), 0.0);
  for (const int64_t user : users_with_test(data)) {
    std::vector<std::pair<double, int64_t>> scored;
    for (const int64_t own : data.train[user]) {
      for (const auto& [cosine, item] : neighbors[own]) {
        scores[item] += cosine;
        scored.emplace_back(0.0, item);
      }
    }
    for (const int64_t own : data.train[user]) {
      scores[own] = 0.0;
    }
    for (auto& [score, item] : scored) {
      score = std::exchange(scores[item], 0.0);  // once for each item
    }
    const auto middle =
        scored.begin() + std::min<std::ptrdiff_t>(kFirst, std::ssize(scored));
    std::partial_sort(scored.begin(), middle, scored.end(), std::greater<>());
    std::vector<int64_t> found;
    for (auto i = scored.begin(); i != middle && i->first > 0.0; ++i) {
      found.push_back(i->second);
    }
    sum.add(found, data.test[user]);
  }
  return sum.mean();
}
