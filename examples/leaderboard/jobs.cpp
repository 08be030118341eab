// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/jobs.h"

#include "examples/common/stopwatch.h"
#include "examples/leaderboard/new_items.h"
#include "examples/leaderboard/scorer_jobs.h"
#include "examples/movielens/training.h"
#include "examples/sasrec/training.h"

#include <tessera/common/json_text.h>
#include <tessera/common/json_value.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
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

// A method without random numbers: `measure` returns the Result for the data.
template <class Data, class Measure>
Job simple_job(const char* model, Data data, Measure measure) {
  return {
      .model = model,
      .has_seeds = false,
      .run = [=](int64_t /*seed*/, Result& result) {
        const auto& read = **data;  // reading is not a part of the method
        const Stopwatch watch;
        result = measure(read);
        result.evaluation_seconds = watch.seconds();
        return 0;
      }};
}

void set_curve(const std::vector<CurvePoint>& curve, Result& result) {
  for (const CurvePoint& point : curve) {
    result.curve.push_back(point.value);
    result.curve_seconds.push_back(point.seconds);
  }
}

// The models check their own settings. This check is for batch, epochs and the like.
void check_setting(const std::string& name, int64_t value) {
  TORCH_CHECK_VALUE(
      value >= 1,
      "[leaderboard] --set ",
      name,
      ": expected a number >= 1, but got ",
      value,
      ". Set another one.");
}
template <class Value>
void check_setting(const std::string& /*name*/, const Value& /*value*/) {}

void check_loss(
    const std::string& loss,
    const std::vector<std::string>& known) {
  TORCH_CHECK_VALUE(
      std::find(known.begin(), known.end(), loss) != known.end(),
      "[leaderboard] --set loss: expected ",
      c10::Join(", ", known),
      ", but got '",
      loss,
      "'. Choose one of them.");
}

// Replaces settings by those of the command line. Returns all settings, which the results
// keep. `losses` has the known names of the setting `loss`.
template <class Options>
Json complete(
    Options& options,
    const JobOptions& job_options,
    const std::vector<std::string>& losses = {}) {
  Json settings;
  std::string names;
  auto left = job_options.set;
  visit_settings(options, [&](const std::string& name, auto& value) {
    names += (names.empty() ? "" : ", ") + name;
    using Type = std::remove_cvref_t<decltype(value)>;
    using Value = tessera::JsonValue<Type>;
    if (const auto found = left.find(name); found != left.end()) {
      if constexpr (
          std::is_same_v<Type, std::string> ||
          std::is_same_v<Type, std::optional<std::string>>) {
        value = found->second;
        if (name == "loss") {
          check_loss(found->second, losses);  // other settings depend on it
        }
      } else {
        const std::string where = "leaderboard --set " + name;
        value = Value::read(
            tessera::parse_json(found->second, "[" + where + "]"), where);
      }
      check_setting(name, value);
      left.erase(found);
    }
    if (const Json json = Value::write(value); !json.is_null()) {
      settings[name] = json;
    }
  });
  TORCH_CHECK_VALUE(
      left.empty(),
      "[leaderboard] --set: ",
      job_options.data,
      " has no setting '",
      left.begin()->first,
      "'. Its settings are ",
      names,
      ". Choose the data set with --only.");
  return settings;
}

// --- stars ---

template <class Visit>
void visit_settings(Options& options, Visit&& visit) {
  visit("epochs", options.epochs);
  visit("batch", options.batch);
  visit("dim", options.dim);
  visit("dtype", options.dtype);
}

// The errors of the methods that need no training.
Report errors_of_simple(const RatingData& data) {
  Report report;
  evaluate(torch::zeros({std::ssize(data.test())}), data, report);
  return report;
}

// Makes all users alike, and all movies, so that only the ratings tell them apart.
MovieLens without_properties(MovieLens data) {
  std::fill(data.users.begin(), data.users.end(), MovieLens::User());
  for (MovieLens::Movie& movie : data.movies) {
    movie.year = 0;
    movie.genres.clear();
  }
  return data;
}

// Trains `models` raters, and measures the mean of their predictions.
template <class Data>
Job rater_job(
    const char* name,
    Data data,
    const Options& options,
    const Json& settings,
    int64_t models = 1) {
  return {
      .model = name,
      .settings = settings,
      .run = [=](int64_t seed, Result& result) {
        Options own = options;
        result.epochs = own.epochs;
        Report report;
        torch::Tensor stars = torch::zeros({std::ssize((**data).test())});
        for (int64_t i = 0; i < models; ++i) {
          own.seed = seed * models + i;
          Rater model(**data, own);
          const auto history = train(model, **data, own, Process(), report);
          if (const int signal = history.stop_signal()) {
            return signal;
          }
          result.train_seconds += report.seconds;
          const Stopwatch watch;
          stars += predict(model, **data, (**data).test()) /
              static_cast<double>(models);
          result.evaluation_seconds += watch.seconds();
        }
        evaluate(stars, **data, report);
        result.metrics = {{"RMSE", report.rmse}};
        return 0;
      }};
}

std::vector<Job> rating_jobs(
    const std::string& folder,
    const JobOptions& job_options) {
  const bool validate = job_options.validate;
  const auto data =
      make_lazy([=] { return RatingData(load_movielens(folder), validate); });
  const auto plain = make_lazy([=] {
    return RatingData(without_properties(load_movielens(folder)), validate);
  });
  Options options;
  const Json settings = complete(options, job_options);
  return {
      simple_job(
          "mean",
          data,
          [](const RatingData& ratings) {
            return Result{
                .metrics = {{"RMSE", errors_of_simple(ratings).rmse_mean}}};
          }),
      simple_job(
          "user and movie biases",
          data,
          [](const RatingData& ratings) {
            return Result{
                .metrics = {{"RMSE", errors_of_simple(ratings).rmse_biases}}};
          }),
      rater_job("rater", data, options, settings),
      rater_job("rater, ratings only", plain, options, settings),
      rater_job("rater, mean of 3 models", data, options, settings, 3)};
}

// --- the next item of a sequence ---

// These are the settings of BSARec's authors that differ between the public data sets.
struct FilterSettings {
  const char* data;
  int64_t heads;
  double learning_rate;
  double share;
  int64_t frequencies;
};

constexpr FilterSettings kFilterSettings[] = {
    {"Beauty", 1, 0.0005, 0.7, 3},
    {"Sports", 4, 0.001, 0.3, 3},
    {"Toys", 1, 0.001, 0.7, 2},
    {"LastFM", 1, 0.001, 0.9, 2}};

SequenceOptions sequence_options(const std::string& name) {
  // Yelp and files of your own have these. The time of the loss does not depend on the
  // number of items.
  SequenceOptions options{
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
      .windows = true,
      .dropout = 0.5,
      .temperature = 0.1,
      .learning_rate = 0.003};
  const auto* const filter = std::find_if(
      std::begin(kFilterSettings),
      std::end(kFilterSettings),
      [&](const FilterSettings& settings) { return settings.data == name; });
  if (filter != std::end(kFilterSettings)) {
    options.loss = "softmax";
    options.batch = 256;
    options.blocks = 2;
    options.heads = filter->heads;
    options.gated = false;
    options.temperature = std::nullopt;
    options.learning_rate = filter->learning_rate;
    options.prefixes = true;
    options.activation = "gelu";
    options.norm = "post";
    options.positions = "last";
    options.embedding_norm = true;
    options.attention_dropout = 0.5;
    options.initial_stddev = 0.02;
    options.filter_share = filter->share;
    options.filter_frequencies = filter->frequencies;
    options.averaging = 0.999;
  }
  return options;
}

template <class Visit>
void visit_settings(SequenceOptions& options, Visit&& visit) {
  visit("loss", options.loss);
  if (options.loss == "sampled") {
    visit("negatives", options.negatives);
  }
  visit("epochs", options.epochs);
  visit("patience", options.patience);
  visit("batch", options.batch);
  visit("dim", options.dim);
  visit("blocks", options.blocks);
  visit("heads", options.heads);
  visit("feed_forward", options.feed_forward);
  visit("gated", options.gated);
  visit("max_length", options.max_length);
  visit("windows", options.windows);
  visit("dropout", options.dropout);
  visit("temperature", options.temperature);
  visit("learning_rate", options.learning_rate);
  visit("prefixes", options.prefixes);
  visit("activation", options.activation);
  visit("norm", options.norm);
  visit("positions", options.positions);
  visit("embedding_norm", options.embedding_norm);
  visit("attention_dropout", options.attention_dropout);
  visit("initial_stddev", options.initial_stddev);
  visit("filter_share", options.filter_share);
  if (options.filter_share) {
    visit("filter_frequencies", options.filter_frequencies);
  }
  visit("averaging", options.averaging);
  visit("dtype", options.dtype);
  visit("slot_dtype", options.slot_dtype);
}

Result result_of(const Ranking& ranking) {
  Result result{
      .metrics = {{"recall@10", ranking.hit_rate}, {"NDCG@10", ranking.ndcg}},
      .standard_errors =
          {{"recall@10", ranking.hit_rate_error},
           {"NDCG@10", ranking.ndcg_error}},
      .lists = ranking.lists};
  for (std::vector<int64_t>& items : result.lists) {
    for (int64_t& item : items) {
      ++item;  // the files count from 1
    }
  }
  return result;
}

ScorerTask task_of(const Histories& histories) {
  const auto rank = [&](const ItemScores& scores, HeldOut which) {
    return ranking_by_scores(scores, histories, which);
  };
  return {
      .num_items = histories.num_items(),
      .order = ItemOrder::kTime,
      .choice = items_before(histories, HeldOut::kValidation),
      .train = items_before(histories, HeldOut::kValidation),
      .refit = items_before(histories, HeldOut::kTest),
      .validation_ndcg =
          [=](const ItemScores& scores) {
            return rank(scores, HeldOut::kValidation).ndcg;
          },
      .test =
          [=](const ItemScores& scores) {
            return result_of(rank(scores, HeldOut::kTest));
          }};
}

void append(std::vector<Job> more, std::vector<Job>& jobs) {
  for (Job& job : more) {
    jobs.push_back(std::move(job));
  }
}

std::vector<Job> next_item_jobs(
    const DataSet& data,
    const std::string& path,
    const JobOptions& job_options) {
  SequenceOptions options = sequence_options(data.name);
  Json settings =
      complete(options, job_options, {"softmax", "sampled", "binary"});
  check_model_options(options);
  const auto histories = make_lazy([=] {
    return load_histories(
        path,
        options.max_length,
        options.windows,
        options.prefixes.value_or(false));
  });
  const auto task = make_lazy([=] { return task_of(**histories); });
  const auto scorer_task = [=]() -> const ScorerTask& { return **task; };
  std::vector<Job> jobs{
      simple_job("popularity", histories, [](const Histories& data) {
        return result_of(ranking_by_popularity(data));
      })};
  const LazyScorerChoice ease = ease_choice(scorer_task);
  append(neighbor_jobs(scorer_task), jobs);
  append(ease_jobs(scorer_task, ease), jobs);
  // The models of this call, by their seeds. Both jobs below use them.
  const auto trained = std::make_shared<std::map<int64_t, SequenceRun>>();
  const auto train = [=](int64_t seed) {
    if (trained->contains(seed)) {
      return 0;
    }
    SequenceRun run;
    const int signal =
        train_sasrec(**histories, options, seed, run).stop_signal();
    if (signal == 0) {
      trained->emplace(seed, std::move(run));
    }
    return signal;
  };
  const char* const name = "SASRec";
  jobs.push_back(
      {.model = name,
       .settings = settings,
       .run = [=](int64_t seed, Result& result) {
         if (const int signal = train(seed)) {
           return signal;
         }
         const SequenceRun& run = trained->at(seed);
         result = result_of(run.test);
         result.validation = run.validation_ndcg;
         result.epochs = run.epochs;
         result.best_epoch = run.best_epoch;
         result.train_seconds = run.seconds;
         result.evaluation_seconds = run.evaluation_seconds;
         set_curve(run.curve, result);
         return 0;
       }});
  jobs.push_back(mixture_job(
      scorer_task, ease, name, std::move(settings), [=](int64_t seed) {
        if (const int signal = train(seed)) {
          return TrainedModel{.stop_signal = signal};
        }
        const SequenceRun& run = trained->at(seed);
        return TrainedModel{.scores = run.scores, .train_seconds = run.seconds};
      }));
  return jobs;
}

// --- new items of a user ---

template <class Visit>
void visit_settings(NewItemOptions& options, Visit&& visit) {
  visit("loss", options.loss);
  visit("dim", options.dim);
  visit("user_share", options.user_share);
  visit("negatives", options.negatives);
  if (options.loss == "softmax") {
    visit("temperature", options.temperature);
  } else {
    visit("margin", options.margin);
    visit("negative_weight", options.negative_weight);
  }
  visit("batch", options.batch);
  visit("learning_rate", options.learning_rate);
  visit("beta_1", options.beta_1);
  visit("beta_2", options.beta_2);
  visit("epochs", options.epochs);
  visit("dtype", options.dtype);
  visit("slot_dtype", options.slot_dtype);
}

Result result_of(const NewItemRanking& ranking) {
  return {
      .metrics = {{"recall@20", ranking.recall}, {"NDCG@20", ranking.ndcg}},
      .standard_errors =
          {{"recall@20", ranking.recall_error},
           {"NDCG@20", ranking.ndcg_error}},
      .lists = ranking.lists};
}

// The settings are chosen on a part of the training items, as with SimpleX. Then the scorer
// is fitted to all.
ScorerTask task_of(const Interactions& data) {
  auto reduced = std::make_shared<const Interactions>(with_validation(data));
  return {
      .num_items = data.num_items,
      .choice = reduced->train,
      .train = data.train,
      .validation_ndcg =
          [=](const ItemScores& scores) {
            return ranking_by_scores(scores, *reduced).ndcg;
          },
      .test =
          [&](const ItemScores& scores) {
            return result_of(ranking_by_scores(scores, data));
          }};
}

std::vector<Job> new_item_jobs(
    const std::vector<std::string>& paths,
    const JobOptions& job_options) {
  const bool validate = job_options.validate;
  const auto data = make_lazy([=] {
    Interactions all = load_interactions(paths[0], paths[1]);
    return validate ? with_validation(std::move(all)) : all;
  });
  NewItemOptions options;
  Json settings = complete(options, job_options, {"softmax", "contrastive"});
  check_model_options(options);
  const auto task = make_lazy([=] { return task_of(**data); });
  const auto scorer_task = [=]() -> const ScorerTask& { return **task; };
  std::vector<Job> jobs{
      simple_job("popularity", data, [](const Interactions& all) {
        return result_of(ranking_by_scores(
            popularity_scores(all.train, all.num_items), all));
      })};
  append(neighbor_jobs(scorer_task), jobs);
  jobs.push_back(graph_filter_job(scorer_task));
  jobs.push_back(
      {.model = "SimpleX",
       .settings = std::move(settings),
       .run = [=](int64_t seed, Result& result) {
         NewItemRun run;
         const auto history =
             train_simplex(**data, options, seed, validate, run);
         result = result_of(run.test);
         result.epochs = options.epochs;
         result.train_seconds = run.seconds;
         result.evaluation_seconds = run.evaluation_seconds;
         set_curve(run.curve, result);
         return history.stop_signal();
       }});
  return jobs;
}

}  // namespace

std::vector<Job> jobs_of(
    const DataSet& data,
    const std::vector<std::string>& paths,
    const JobOptions& job_options) {
  switch (data.task) {
    case Task::kNewItems:
      return new_item_jobs(paths, job_options);
    case Task::kRatings:
      return rating_jobs(paths[0], job_options);
    default:
      return next_item_jobs(data, paths[0], job_options);
  }
}
