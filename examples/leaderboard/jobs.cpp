// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/jobs.h"

#include "examples/sasrec/training.h"

#include <chrono>
#include <memory>
#include <utility>

using tessera::Json;

namespace {

// Makes a value when it is first needed.
template <class Make>
class Lazy {
 public:
  using Value = decltype(std::declval<Make>()());

  explicit Lazy(Make make) : make_(std::move(make)) {}

  const Value& operator*() {
    if (!value_) {
      value_.emplace(make_());
    }
    return *value_;
  }

 private:
  Make make_;
  std::optional<Value> value_;
};

template <class Make>
std::shared_ptr<Lazy<Make>> make_lazy(Make make) {
  return std::make_shared<Lazy<Make>>(std::move(make));
}

// Runs `measure`, which returns a Result, and adds the seconds that it took.
template <class Measure>
Result with_seconds(Measure measure) {
  const auto start = std::chrono::steady_clock::now();
  Result result = measure();
  const std::chrono::duration<double> passed =
      std::chrono::steady_clock::now() - start;
  result.evaluation_seconds = passed.count();
  return result;
}

// --- the next item of a sequence ---

// The settings with the best NDCG@10 on the validation items. The three sets of Amazon's
// reviews share one.
Options sequence_options(const std::string& name) {
  Options options{
      .loss = "sampled",
      .negatives = 1024,
      .epochs = 200,
      .patience = 10,
      .batch = 128,
      .dim = 64,
      .blocks = 1,
      .heads = 1,
      .feed_forward = 256,
      .gated = true,
      .max_length = 50,
      .dropout = 0.5,
      .learning_rate = 0.001};
  if (name == "LastFM") {
    // 1,090 users, who have 48 items each.
    options.loss = "softmax";
    options.batch = 32;
    options.patience = 20;
  }
  return options;
}

Json json_of(const Options& options) {
  Json json = {{"loss", options.loss}};
  if (options.loss == "sampled") {
    json["negatives"] = options.negatives;
  }
  json["epochs"] = options.epochs;
  json["patience"] = options.patience;
  json["batch"] = options.batch;
  json["dim"] = options.dim;
  json["blocks"] = options.blocks;
  json["heads"] = options.heads;
  json["feed_forward"] = options.feed_forward;
  json["gated"] = options.gated;
  json["max_length"] = options.max_length;
  json["dropout"] = options.dropout;
  json["learning_rate"] = options.learning_rate;
  return json;
}

Result result_of(const Ranking& ranking) {
  return {
      .metrics = {{"recall@10", ranking.hit_rate}, {"NDCG@10", ranking.ndcg}}};
}

std::vector<Job> next_item_jobs(const DataSet& data, const std::string& path) {
  const Options options = sequence_options(data.name);
  const auto histories =
      make_lazy([=] { return load_histories(path, options.max_length); });
  return {
      {.model = "popularity",
       .has_seeds = false,
       .run =
           [=](int64_t) {
             return with_seconds(
                 [&] { return result_of(ranking_by_popularity(**histories)); });
           }},
      {.model = "item-kNN",
       .has_seeds = false,
       .run =
           [=](int64_t) {
             return with_seconds(
                 [&] { return result_of(ranking_by_neighbors(**histories)); });
           }},
      {.model = "SASRec",
       .settings = json_of(options),
       .run = [=](int64_t seed) -> std::optional<Result> {
         Run run;
         if (train_sasrec(**histories, options, seed, run).stop_signal() != 0) {
           return std::nullopt;
         }
         Result result = result_of(run.test);
         result.validation = run.validation_ndcg;
         result.epochs = run.epochs;
         result.best_epoch = run.best_epoch;
         result.train_seconds = run.seconds;
         result.evaluation_seconds = run.evaluation_seconds;
         for (const CurvePoint& point : run.curve) {
           result.curve.push_back(point.value);
           result.curve_seconds.push_back(point.seconds);
         }
         return result;
       }}};
}

}  // namespace

std::vector<Job> jobs_of(
    const DataSet& data,
    const std::vector<std::string>& paths) {
  return next_item_jobs(data, paths[0]);
}
