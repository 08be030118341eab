// SPDX-License-Identifier: Apache-2.0
// Predicts the stars that users give to movies, on MovieLens 100K.
//
//   stars = mean + biases + <user, movie> + tower(user, movie, user * movie)
//
// where `user` sums what is known of the user (id, occupation, age, gender, the
// movies rated before) and `movie` what is known of the movie (id, genres,
// year, the users who rated it before).
#include "examples/movielens_data.h"
#include "examples/outputs.h"

#include <tessera/distributed/mpi_backend.h>
#include <tessera/tessera.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/script.h>

#include <iostream>
#include <optional>
#include <sstream>

namespace optim = tessera::optim;
using tessera::FeatureConfig;
using tessera::RaggedFeature;
using torch::Tensor;

namespace {

struct Options {
  std::string data = ".deps/data/ml-100k";
  std::string save = {};
  std::string checkpoint = {};  // directory
  std::string exported = {};  // file
  int64_t seed = 0;
  int64_t epochs = 8;
  int64_t batch = 1000;
  int64_t user = 1;
  std::string dtype = "float32";  // of the tables
  bool json = false;
  bool sharded = false;  // over the ranks of mpirun
};

constexpr int64_t kDim = 16;
constexpr int64_t kAgeGroups = 14;  // of five years
constexpr int64_t kYears = 18;  // decades up to 1989, then single years

int64_t age_group(int64_t age) {
  return std::min(age / 5, kAgeGroups - 1);
}

int64_t year_group(int64_t year) {
  if (year >= 1990) {
    return std::min(year - 1990 + 8, kYears - 1);
  }
  return year == 0 ? kYears - 1 : std::max<int64_t>(0, (year - 1910) / 10);
}

Tensor int64_tensor(const std::vector<int64_t>& values) {
  return torch::tensor(values, torch::kLong);
}

// The ratings, split at random, and the features of any of them. Held-out
// ratings are in no feature, and a rating is not in its own features.
class Dataset {
 public:
  Dataset(MovieLens data, int64_t seed) : data_(std::move(data)) {
    torch::manual_seed(static_cast<uint64_t>(seed));
    const auto count = static_cast<int64_t>(data_.ratings.size());
    const Tensor order = torch::randperm(count);
    const auto index = order.accessor<int64_t, 1>();
    rated_.resize(data_.users.size());
    raters_.resize(data_.movies.size());
    for (int64_t i = 0; i < count; ++i) {
      const MovieLens::Rating& rating = data_.ratings[index[i]];
      if (i < count / 10) {
        test_.push_back(rating);
        continue;
      }
      train_.push_back(rating);
      rated_[rating.user].push_back(rating);
      raters_[rating.movie].push_back(rating);
      mean_ += rating.stars;
    }
    mean_ /= static_cast<double>(train_.size());
  }

  const MovieLens& data() const {
    return data_;
  }
  const std::vector<MovieLens::Rating>& train() const {
    return train_;
  }
  const std::vector<MovieLens::Rating>& test() const {
    return test_;
  }
  double mean() const {
    return mean_;
  }
  bool has_rated(int64_t user, int64_t movie) const {
    return std::any_of(
        rated_[user].begin(), rated_[user].end(), [&](const auto& rating) {
          return rating.movie == movie;
        });
  }

  struct Batch {
    tessera::Features features = {};
    tessera::Weights weights = {};
    Tensor stars = {};  // [batch]
  };

  Batch batch(const std::vector<MovieLens::Rating>& ratings) const {
    std::vector<int64_t> user, movie, occupation, age, gender, year, genres,
        history, raters;
    std::vector<int64_t> genre_counts, history_counts, rater_counts;
    std::vector<float> stars, history_weights;
    for (const MovieLens::Rating& rating : ratings) {
      const MovieLens::User& who = data_.users[rating.user];
      const MovieLens::Movie& what = data_.movies[rating.movie];
      user.push_back(rating.user);
      movie.push_back(rating.movie);
      occupation.push_back(who.occupation);
      age.push_back(age_group(who.age));
      gender.push_back(who.gender);
      year.push_back(year_group(what.year));
      genres.insert(genres.end(), what.genres.begin(), what.genres.end());
      genre_counts.push_back(static_cast<int64_t>(what.genres.size()));
      const size_t history_begin = history.size();
      for (const MovieLens::Rating& other : rated_[rating.user]) {
        if (other.movie != rating.movie) {
          history.push_back(other.movie);
          history_weights.push_back(history_weight(other));
        }
      }
      history_counts.push_back(
          static_cast<int64_t>(history.size() - history_begin));
      const size_t raters_begin = raters.size();
      for (const MovieLens::Rating& other : raters_[rating.movie]) {
        if (other.user != rating.user) {
          raters.push_back(other.user);
        }
      }
      rater_counts.push_back(
          static_cast<int64_t>(raters.size() - raters_begin));
      stars.push_back(rating.stars);
    }
    const auto ragged = [](const std::vector<int64_t>& values,
                           const std::vector<int64_t>& lengths) {
      return RaggedFeature::from_lengths(
          int64_tensor(values), int64_tensor(lengths));
    };
    return {
        .features =
            {{"user", int64_tensor(user)},
             {"user_bias", int64_tensor(user)},
             {"occupation", int64_tensor(occupation)},
             {"age", int64_tensor(age)},
             {"gender", int64_tensor(gender)},
             {"history", ragged(history, history_counts)},
             {"movie", int64_tensor(movie)},
             {"movie_bias", int64_tensor(movie)},
             {"genres", ragged(genres, genre_counts)},
             {"year", int64_tensor(year)},
             {"raters", ragged(raters, rater_counts)}},
        .weights = {{"history", torch::tensor(history_weights)}},
        .stars = torch::tensor(stars)};
  }

 private:
  // A movie that the user liked says more about the user.
  static float history_weight(const MovieLens::Rating& rating) {
    return rating.stars;
  }

  MovieLens data_;
  std::vector<MovieLens::Rating> train_, test_;
  std::vector<std::vector<MovieLens::Rating>> rated_;  // by user
  std::vector<std::vector<MovieLens::Rating>> raters_;  // by movie
  double mean_ = 0.0;
};

struct RaterImpl : torch::nn::Module {
  RaterImpl(
      const Dataset& dataset,
      const Options& options,
      const tessera::Strategy& strategy = tessera::Strategy::engine())
      : mean(dataset.mean()) {
    const MovieLens& data = dataset.data();
    const auto users = static_cast<int64_t>(data.users.size());
    const auto movies = static_cast<int64_t>(data.movies.size());
    const at::ScalarType dtype = tessera::dtype_from_string(options.dtype);
    const auto table = [dtype](
                           const char* name,
                           int64_t rows,
                           tessera::Combiner combiner =
                               tessera::Combiner::kMean) {
      return FeatureConfig{
          .table = tessera::make_table(
              {.name = name,
               .vocabulary_size = rows,
               .dim = kDim,
               .combiner = combiner,
               .initializer = tessera::initializers::Normal{.stddev = 0.05},
               .dtype = dtype})};
    };
    const optim::LearningRate bias_rate(
        "bias_rate", [this] { return 0.005 * remaining; });
    const auto bias_table = [&](const char* name, int64_t rows) {
      return FeatureConfig{
          .table = tessera::make_table(
              {.name = name,
               .vocabulary_size = rows,
               .dim = 1,
               .initializer = tessera::initializers::Zeros{},
               .optimizer = optim::Adam{.learning_rate = bias_rate}})};
    };
    using tessera::Combiner;
    embedding = register_module(
        "embedding",
        tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
            .features =
                {{"user", table("user", users)},
                 {"user_bias", bias_table("user_bias", users)},
                 {"occupation",
                  table(
                      "occupation",
                      static_cast<int64_t>(data.occupations.size()))},
                 {"age", table("age", kAgeGroups)},
                 {"gender", table("gender", 2)},
                 {"history", table("history", movies, Combiner::kSqrtn)},
                 {"movie", table("movie", movies)},
                 {"movie_bias", bias_table("movie_bias", movies)},
                 {"genres",
                  table("genre", static_cast<int64_t>(data.genres.size()))},
                 {"year", table("year", kYears)},
                 {"raters", table("raters", users, Combiner::kSqrtn)}},
            .optimizer =
                optim::Adam{
                    .learning_rate = optim::LearningRate(
                        "table_rate", [this] { return 0.001 * remaining; })},
            .strategy = strategy,
            .seed = static_cast<uint64_t>(options.seed)}));
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            torch::nn::Linear(3 * kDim, 32),
            torch::nn::ReLU(),
            torch::nn::Dropout(0.3),
            torch::nn::Linear(32, 1)));
    // The tower starts as a small correction of the bilinear model.
    const torch::NoGradGuard no_grad;
    tower[3]->as<torch::nn::Linear>()->weight.mul_(0.1);
    tower[3]->as<torch::nn::Linear>()->bias.zero_();
  }

  // What is known of user and movie, each in one vector.
  struct Sums {
    Tensor user = {};  // [batch, kDim]
    Tensor movie = {};  // [batch, kDim]
    Tensor biases = {};  // [batch, 1]
    Tensor penalty = {};  // the squared lengths of the embeddings, added up
  };

  Sums look_up(
      const tessera::Features& features,
      const tessera::Weights& weights) {
    const auto found = embedding->forward(features, weights);
    Sums sums{.biases = found["user_bias"] + found["movie_bias"]};
    const auto add = [&](Tensor& sum, const char* feature) {
      const Tensor& activation = found[feature];
      const Tensor squares = activation.square().sum();
      sum = sum.defined() ? sum + activation : activation;
      sums.penalty = sums.penalty.defined() ? sums.penalty + squares : squares;
    };
    for (const char* feature :
         {"user", "occupation", "age", "gender", "history"}) {
      add(sums.user, feature);
    }
    for (const char* feature : {"movie", "genres", "year", "raters"}) {
      add(sums.movie, feature);
    }
    return sums;
  }

  Tensor stars_of(const Sums& sums) {
    const Tensor product = sums.user * sums.movie;
    const Tensor correction =
        tower->forward(torch::cat({sums.user, sums.movie, product}, 1));
    return mean + (sums.biases + correction).squeeze(1) + product.sum(1);
  }

  // Stars [batch].
  Tensor forward(
      const tessera::Features& features,
      const tessera::Weights& weights) {
    return stars_of(look_up(features, weights));
  }

  tessera::TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
  double mean = 0.0;
  double remaining = 1.0;  // of the training; scales all learning rates
};
TORCH_MODULE(Rater);

using Ratings = std::vector<MovieLens::Rating>;

// Which of the processes that train together this one is.
struct Place {
  tessera::Strategy strategy = tessera::Strategy::engine();
  int64_t rank = 0;
  int64_t ranks = 1;
};

// Consecutive ratings [begin, begin + size) in the given order.
Ratings slice(
    const Ratings& ratings,
    const std::vector<int64_t>& order,
    int64_t begin,
    int64_t size) {
  Ratings part;
  const auto end = std::min(begin + size, static_cast<int64_t>(order.size()));
  for (int64_t i = begin; i < end; ++i) {
    part.push_back(ratings[order[i]]);
  }
  return part;
}

std::vector<int64_t> random_order(size_t count) {
  const Tensor order = torch::randperm(static_cast<int64_t>(count));
  const int64_t* begin = order.data_ptr<int64_t>();
  return {begin, begin + count};
}

std::vector<int64_t> given_order(size_t count) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Not limited to [1, 5], so that the best movies can still be told apart.
Tensor predict(Rater& model, const Dataset& dataset, const Ratings& ratings) {
  const torch::NoGradGuard no_grad;
  model->eval();
  std::vector<Tensor> parts;
  const std::vector<int64_t> order = given_order(ratings.size());
  constexpr int64_t kBatch = 1000;
  for (size_t begin = 0; begin < ratings.size(); begin += kBatch) {
    const auto part =
        slice(ratings, order, static_cast<int64_t>(begin), kBatch);
    const Dataset::Batch batch = dataset.batch(part);
    parts.push_back(model->forward(batch.features, batch.weights));
  }
  model->train();
  return torch::cat(parts);
}

// Learning rates that fall to zero, and in checkpoints what a training must not
// be resumed without.
class Schedule : public tessera::training::Callback {
 public:
  Schedule(
      Rater model,
      torch::optim::AdamWOptions& dense,
      const Options& options,
      int64_t steps)
      : model_(std::move(model)),
        dense_(dense),
        options_(options),
        steps_(static_cast<double>(steps)) {}

  void on_epoch_begin(tessera::training::Training& training) override {
    set_rates(training);
  }
  void on_step_end(tessera::training::Training& training) override {
    set_rates(training);
  }

  std::string state_name() const override {
    return "schedule";
  }
  void save_state(torch::serialize::OutputArchive& archive) const override {
    archive.write("seed", c10::IValue(options_.seed));
    archive.write("batch", c10::IValue(options_.batch));
  }
  void load_state(torch::serialize::InputArchive& archive) override {
    c10::IValue seed, batch;
    archive.read("seed", seed);
    archive.read("batch", batch);
    // Another seed would hold out ratings that have been trained on.
    TORCH_CHECK_VALUE(
        seed.toInt() == options_.seed && batch.toInt() == options_.batch,
        "[movielens] '",
        options_.checkpoint,
        "' was trained with --seed ",
        seed.toInt(),
        " --batch ",
        batch.toInt(),
        ", but got --seed ",
        options_.seed,
        " --batch ",
        options_.batch,
        ". Use the same, or another directory.");
  }

 private:
  void set_rates(const tessera::training::Training& training) {
    const auto step = static_cast<double>(training.progress().step);
    model_->remaining = 1.0 - step / steps_;
    dense_.lr(3e-4 * model_->remaining);
  }

  Rater model_;
  torch::optim::AdamWOptions& dense_;
  const Options& options_;
  double steps_;
};

// This rank's share of a batch.
Ratings share_of(const Ratings& batch, const Place& place) {
  Ratings share;
  for (size_t i = place.rank; i < batch.size(); i += place.ranks) {
    share.push_back(batch[i]);
  }
  return share;
}

struct Training {
  int64_t examples = 0;  // 0 when a resumed run had nothing to do
  double seconds = 0.0;
  tessera::training::History history = {};
};

Training train(
    Rater& model,
    const Dataset& dataset,
    const Options& options,
    const Place& place) {
  const std::vector<Tensor> dense_weights = tessera::dense_parameters(*model);
  tessera::distributed::broadcast_parameters(dense_weights, place.strategy);
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
  const auto count = static_cast<int64_t>(dataset.train().size());
  const int64_t steps_per_epoch = (count + options.batch - 1) / options.batch;
  const auto progress = std::make_shared<tessera::training::ProgressBar>();
  tessera::training::Callbacks callbacks{std::make_shared<Schedule>(
      model,
      static_cast<torch::optim::AdamWOptions&>(
          optimizer.param_groups().front().options()),
      options,
      steps_per_epoch * options.epochs)};
  if (place.rank == 0) {
    callbacks.push_back(progress);
  }
  std::shared_ptr<tessera::training::Checkpoint> checkpoint;
  if (!options.checkpoint.empty()) {
    checkpoint = std::make_shared<tessera::training::Checkpoint>(
        options.checkpoint, model.ptr(), optimizer);
  }

  const auto batches_of = [&](int64_t epoch) {
    // By epoch, so that a resumed run goes on as a straight one does.
    const int64_t seed = options.seed * 1'000'000 + epoch;
    torch::manual_seed(static_cast<uint64_t>(seed));
    const std::vector<int64_t> order = random_order(dataset.train().size());
    std::vector<Ratings> batches;
    for (int64_t begin = 0; begin < count; begin += options.batch) {
      batches.push_back(slice(dataset.train(), order, begin, options.batch));
    }
    torch::manual_seed(  // dropout, another one on each rank
        static_cast<uint64_t>(seed * place.ranks + place.rank));
    return batches;
  };
  Training training;
  const auto loss_of = [&](const Ratings& whole) {
    const Dataset::Batch batch = dataset.batch(share_of(whole, place));
    const auto sums = model->look_up(batch.features, batch.weights);
    const Tensor stars = model->stars_of(sums);
    const Tensor error = (stars - batch.stars).square().sum();
    const auto size = static_cast<int64_t>(whole.size());
    training.examples += size;
    return tessera::training::StepResult{
        // Ranks add up to the mean over the whole batch.
        .loss = (error + 0.03 * sums.penalty) / static_cast<double>(size),
        .predictions = stars,
        .labels = batch.stars,
        .examples = size};
  };
  training.history = tessera::training::fit(
      batches_of,
      tessera::training::make_train_step(
          optimizer,
          loss_of,
          {.strategy = place.strategy, .dense_parameters = dense_weights}),
      {.epochs = options.epochs,
       .model = model.ptr(),
       .metrics = {std::make_shared<tessera::training::RMSE>()},
       .callbacks = std::move(callbacks),
       .checkpoint = checkpoint,
       .strategy = place.strategy});
  training.seconds = progress->seconds();
  return training;
}

double rmse(const Tensor& predicted, const Tensor& stars) {
  const Tensor error = predicted.clamp(1.0, 5.0) - stars;
  return error.to(torch::kDouble).square().mean().sqrt().item<double>();
}

// mean + user bias + movie bias, fitted by alternating ridge regressions.
Tensor predict_by_biases(const Dataset& dataset) {
  constexpr double kUserRidge = 15.0;
  constexpr double kMovieRidge = 10.0;
  std::vector<double> user(dataset.data().users.size(), 0.0);
  std::vector<double> movie(dataset.data().movies.size(), 0.0);
  for (int round = 0; round < 10; ++round) {
    const auto fit = [&](auto id_of, double ridge, auto& biases, auto rest_of) {
      std::vector<double> sums(biases.size(), 0.0);
      std::vector<double> counts(biases.size(), ridge);
      for (const MovieLens::Rating& rating : dataset.train()) {
        sums[id_of(rating)] += rating.stars - dataset.mean() - rest_of(rating);
        counts[id_of(rating)] += 1.0;
      }
      for (size_t i = 0; i < biases.size(); ++i) {
        biases[i] = sums[i] / counts[i];
      }
    };
    const auto user_of = [](const auto& rating) { return rating.user; };
    const auto movie_of = [](const auto& rating) { return rating.movie; };
    fit(movie_of, kMovieRidge, movie, [&](const auto& rating) {
      return user[rating.user];
    });
    fit(user_of, kUserRidge, user, [&](const auto& rating) {
      return movie[rating.movie];
    });
  }
  std::vector<float> predicted;
  for (const MovieLens::Rating& rating : dataset.test()) {
    predicted.push_back(static_cast<float>(
        dataset.mean() + user[rating.user] + movie[rating.movie]));
  }
  return torch::tensor(predicted);
}

// The movies that `user` has not rated, best first.
std::vector<std::pair<std::string, double>> recommend(
    Rater& model,
    const Dataset& dataset,
    int64_t user,
    int64_t count) {
  Ratings candidates;
  for (size_t movie = 0; movie < dataset.data().movies.size(); ++movie) {
    const auto id = static_cast<int64_t>(movie);
    if (!dataset.has_rated(user, id)) {
      candidates.push_back({.user = user, .movie = id});
    }
  }
  const Tensor stars = predict(model, dataset, candidates);
  const auto [best, index] =
      stars.topk(std::min<int64_t>(count, stars.size(0)));
  std::vector<std::pair<std::string, double>> titles;
  for (int64_t i = 0; i < best.size(0); ++i) {
    const auto movie = candidates[index[i].item<int64_t>()].movie;
    titles.emplace_back(
        dataset.data().movies[movie].title,
        std::min(5.0, best[i].item<double>()));
  }
  return titles;
}

// Saves the model to the user's file or to memory. Whether a model that is loaded
// from there predicts exactly the same.
bool reload_gives_same(
    Rater& model,
    const Dataset& dataset,
    const Options& options,
    const Tensor& expected) {
  Options other = options;
  other.seed = options.seed + 1;  // loading must replace everything
  Rater loaded(dataset, other);
  if (options.save.empty()) {
    std::stringstream memory;
    torch::save(model, memory);
    torch::load(loaded, memory);
  } else {
    tessera::save_to_file(model, options.save);
    torch::load(loaded, options.save);
  }
  return torch::equal(predict(loaded, dataset, dataset.test()), expected);
}

// A batch as an exported file takes it: a list of tensors for each feature.
std::vector<c10::IValue> exported_inputs(const Dataset::Batch& batch) {
  c10::Dict<std::string, c10::List<Tensor>> features;
  for (const auto& [name, nest] : batch.features.entries()) {
    if (const auto* ragged = std::get_if<RaggedFeature>(&nest.leaf())) {
      features.insert(
          name, c10::List<Tensor>({ragged->values, ragged->row_splits}));
    } else {
      features.insert(name, c10::List<Tensor>({std::get<Tensor>(nest.leaf())}));
    }
  }
  c10::Dict<std::string, Tensor> weights;
  for (const auto& [name, nest] : batch.weights.entries()) {
    if (nest.leaf()) {
      weights.insert(name, std::get<Tensor>(*nest.leaf()));
    }
  }
  return {features, weights};
}

// Whether the exported file, which has no Tessera in it, predicts the same.
bool export_gives_same(
    Rater& model,
    const Dataset& dataset,
    const std::string& path,
    const Tensor& expected) {
  const auto batch_of = [&](int64_t begin, int64_t size) {
    const auto count = static_cast<int64_t>(dataset.test().size());
    const auto first = dataset.test().begin() + begin;
    return dataset.batch({first, first + std::min(size, count - begin)});
  };
  const Dataset::Batch example = batch_of(0, 8);
  tessera::export_torchscript(
      model, path, {.features = example.features, .weights = example.weights});
  torch::jit::Module exported = torch::jit::load(path);
  constexpr int64_t kBatch = 1000;
  std::vector<Tensor> stars;
  for (int64_t begin = 0; begin < expected.size(0); begin += kBatch) {
    stars.push_back(
        exported.forward(exported_inputs(batch_of(begin, kBatch))).toTensor());
  }
  return torch::allclose(torch::cat(stars), expected, 1e-5, 1e-5);
}

// Small tables on every rank, the others spread over them.
Place find_place(const Options& options) {
  if (!options.sharded) {
    return {};
  }
  const auto backend = tessera::distributed::make_mpi_backend();
  return {
      tessera::distributed::sharded_strategy(
          backend,
          {.placement =
               {{"age", tessera::TablePlacement::data_parallel()},
                {"gender", tessera::TablePlacement::data_parallel()},
                {"genre", tessera::TablePlacement::data_parallel()},
                {"occupation", tessera::TablePlacement::data_parallel()},
                {"year", tessera::TablePlacement::data_parallel()}},
           .split = tessera::RowSplit::kMod}),
      backend->getRank(),
      backend->getSize()};
}

// The same model in one process. All ranks call it.
Rater collect(Rater& model, const Dataset& dataset, const Options& options) {
  Rater whole(dataset, options);
  for (const auto& table : whole->embedding->embedding_tables()) {
    whole->embedding->update_embedding_table(
        table.name,
        model->embedding->read_rows(table.name, 0, table.parameters.size(0)));
  }
  const torch::NoGradGuard no_grad;
  const std::vector<Tensor> to = whole->tower->parameters();
  const std::vector<Tensor> from = model->tower->parameters();
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].copy_(from[i]);
  }
  return whole;
}

// The result of a comparison as text. It has no value when the comparison failed.
std::string text_of(std::optional<bool> same) {
  return !same ? "FAILED" : *same ? "equal" : "DIFFERENT";
}

tessera::Json json_of(std::optional<bool> same) {
  return same ? tessera::Json(*same) : tessera::Json();
}

int run(const Options& options) {
  const Dataset dataset(load_movielens(options.data), options.seed);
  TORCH_CHECK_VALUE(
      !dataset.test().empty(),
      "[movielens] expected 10 ratings or more, but got ",
      dataset.train().size(),
      ". Fetch the data again.");
  const auto users = static_cast<int64_t>(dataset.data().users.size());
  TORCH_CHECK_VALUE(
      options.user >= 1 && options.user <= users,
      "[movielens] --user must be in [1, ",
      users,
      "], but got ",
      options.user,
      ".");
  make_output_folder("[movielens] --checkpoint", options.checkpoint);
  check_output_file("[movielens] --save", options.save, {options.data});
  check_output_file("[movielens] --export", options.exported, {options.data});
  TORCH_CHECK_VALUE(
      options.save.empty() || options.save != options.exported,
      "[movielens] --save and --export must be two files, but both are '",
      options.save,
      "'.");
  std::optional<TemporaryFile> temporary;  // for an export that is not kept
  if (options.exported.empty()) {
    temporary.emplace("movielens", ".export.pt");
  }
  const Place place = find_place(options);
  Rater model(dataset, options, place.strategy);
  if (!options.json && place.rank == 0) {
    std::cout << model->embedding->summary() << std::flush;
  }
  const Training training = train(model, dataset, options, place);
  if (!training.history.stop_reason.empty()) {
    return say_stopped(training.history, options.checkpoint);
  }
  const Tensor while_sharded = predict(model, dataset, dataset.test());
  if (options.sharded) {
    model = collect(model, dataset, options);
  }
  if (place.rank > 0) {
    return 0;  // rank 0 reports
  }

  const Tensor stars = dataset.batch(dataset.test()).stars;
  const Tensor predicted = predict(model, dataset, dataset.test());
  const double by_mean = rmse(torch::full_like(stars, dataset.mean()), stars);
  const double by_biases = rmse(predict_by_biases(dataset), stars);
  const double by_model = rmse(predicted, stars);
  const auto titles = recommend(model, dataset, options.user - 1, 5);
  FileErrors errors;
  const std::optional<bool> same = errors.run(
      [&] { return reload_gives_same(model, dataset, options, predicted); });
  const std::optional<bool> same_exported = errors.run([&] {
    return export_gives_same(
        model,
        dataset,
        temporary ? temporary->path() : options.exported,
        predicted);
  });
  const bool same_over_ranks = torch::equal(while_sharded, predicted);
  const double examples_per_second =
      static_cast<double>(training.examples) / training.seconds;

  if (options.json) {
    tessera::Json report = {
        {"seed", options.seed},
        {"rmse_mean", by_mean},
        {"rmse_biases", by_biases},
        {"rmse", by_model},
        {"test_ratings", dataset.test().size()},
        {"seconds", training.seconds},
        {"examples_per_second", examples_per_second},
        {"equal_after_reload", json_of(same)},
        {"equal_from_export", json_of(same_exported)},
        {"ranks", place.ranks},
        {"equal_over_ranks", same_over_ranks},
        {"user", options.user}};
    for (const auto& [title, value] : titles) {
      report["recommendations"].push_back({{"title", title}, {"stars", value}});
    }
    std::cout << report.dump(2) << "\n";
  } else {
    std::cout << "\nRMSE on " << dataset.test().size() << " held-out ratings\n"
              << std::fixed << std::setprecision(4) << "  global mean        "
              << by_mean << "\n"
              << "  user + movie bias  " << by_biases << "\n"
              << "  model              " << by_model << "\n"
              << std::setprecision(1) << "\ntrained in " << training.seconds
              << " s, " << std::setprecision(0) << examples_per_second
              << " examples per second\n"
              << "\nfor user " << options.user << "\n"
              << std::setprecision(2);
    for (const auto& [title, value] : titles) {
      std::cout << "  " << value << "  " << title << "\n";
    }
    std::cout << "\npredictions after torch::save and torch::load: "
              << text_of(same)
              << "\npredictions of the exported TorchScript file: "
              << text_of(same_exported) << "\n";
    if (options.sharded) {
      std::cout << "predictions of " << place.ranks
                << " ranks and of one: " << text_of(same_over_ranks) << "\n";
    }
  }
  finish_report("movielens");
  return !errors.say() && *same && *same_exported && same_over_ranks ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a recommender on MovieLens 100K and reports on it.");
  app.add_option("--data", options.data, "folder of MovieLens 100K")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of split and initial values")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000}))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the training ratings")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "ratings per step")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "what the tables are stored as")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  app.add_option("--user", options.user, "whom to recommend movies to, from 1")
      ->capture_default_str();
  app.add_option("--save", options.save, "keep the trained model in this file")
      ->check(refuse_empty);
  app.add_option(
         "--checkpoint",
         options.checkpoint,
         "directory: save after each epoch and at Ctrl-C, resume from what is there")
      ->check(refuse_empty);
  app.add_option(
         "--export",
         options.exported,
         "keep the exported TorchScript in this file")
      ->check(refuse_empty);
  app.add_flag("--json", options.json, "report as JSON");
  app.add_flag(
      "--sharded",
      options.sharded,
      "spread the tables over the processes of mpirun");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "[movielens] " << error.what() << "\n";
  }
  return 1;
}
