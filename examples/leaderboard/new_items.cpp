// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/new_items.h"

#include "examples/common/batches.h"
#include "examples/common/item_scorers.h"
#include "examples/common/learning_rates.h"
#include "examples/common/stopwatch.h"

#include <tessera/search/top_k_index.h>
#include <tessera/tessera.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

namespace optim = tessera::optim;
namespace training = tessera::training;

namespace {

constexpr auto kFirst = static_cast<int64_t>(NewItemRankingSum::kFirst);

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
  NewItemRankingSum sum;
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

tessera::SimpleX make_model(
    int64_t num_users,
    int64_t num_items,
    const optim::LearningRate& rate,
    const NewItemOptions& options,
    int64_t seed) {
  return tessera::SimpleX(tessera::SimpleXOptions{
      .num_users = num_users,
      .num_items = num_items,
      .dim = options.dim,
      .user_share = options.user_share,
      .optimizer =
          optim::Adam{
              .learning_rate = rate,
              .beta_1 = options.beta_1,
              .beta_2 = options.beta_2,
              .epsilon = 1e-8,
              .sum_inside_sqrt = false,
              .bias_correction = true},
      .dtype = tessera::dtype_from_string(options.dtype.value_or("float32")),
      .slot_dtype =
          tessera::dtype_from_string(options.slot_dtype.value_or("float32")),
      .seed = static_cast<uint64_t>(seed)});
}

at::Tensor loss_of(
    tessera::SimpleX& model,
    const NewItemOptions& options,
    const at::Tensor& users,
    const tessera::RaggedFeature& histories,
    const tessera::RaggedFeature& positives,
    const at::Tensor& negatives) {
  return options.loss == "softmax"
      ? model->sampled_softmax_loss(
            users, histories, positives, negatives, options.temperature)
      : tessera::cosine_contrastive_loss(
            model->scores(users, histories, positives, negatives),
            {.margin = options.margin,
             .negative_weight = options.negative_weight});
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

}  // namespace

void check_model_options(const NewItemOptions& options) {
  tessera::SimpleX model = make_model(1, 2, options.learning_rate, options, 0);
  const at::Tensor first = torch::zeros({1}, torch::kLong);
  const tessera::RaggedFeature bag = bags_of({{0}}, {0});
  loss_of(model, options, first, bag, bag, first);
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
  tessera::SimpleX model =
      make_model(data.num_users(), data.num_items, rate, options, seed);
  torch::optim::Adam optimizer(model->parameters(), options.learning_rate);
  const auto step = [&](const std::vector<Pair>& batch_pairs) {
    const Batch batch = batch_of(batch_pairs);
    std::vector<int64_t> all(batch.users.size());
    std::iota(all.begin(), all.end(), 0);
    const auto users = torch::tensor(batch.users);
    const auto histories = bags_of(data.train, batch.users);
    const auto positives = bags_of(batch.items, all);
    const auto negatives =
        torch::randint(data.num_items, {options.negatives}, torch::kLong);
    return training::StepResult{
        .loss = loss_of(model, options, users, histories, positives, negatives),
        .examples = std::ssize(batch_pairs)};
  };
  NewItemRun result;
  training::History history = training::fit(
      [&] { return in_batches(shuffled(pairs), options.batch); },
      training::make_train_step(optimizer, step),
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

NewItemRanking ranking_by_scores(
    const ItemScores& scores,
    const Interactions& data) {
  const std::vector<int64_t> users = users_with_test(data);
  ItemLists items;
  for (const int64_t user : users) {
    items.push_back(data.train[user]);
  }
  const ItemLists found = best_items(scores, items, NewItemRankingSum::kFirst);
  NewItemRankingSum sum;
  for (size_t i = 0; i < users.size(); ++i) {
    sum.add(found[i], data.test[users[i]]);
  }
  return sum.mean();
}
