// SPDX-License-Identifier: Apache-2.0
// Retrieves movies for users, on MovieLens 100K: which of all movies does a user
// rate next?
//
//   score = <tower(user), tower(movie)>
//
// where the user's tower sums what is known of the user (id, age, gender,
// occupation, the movies rated so far and the latest of them) and the movie's
// what is known of the movie (id, genres, year). Each user's last movie is held
// out. Movies that the user has rated before are not candidates.
#include "examples/movielens_data.h"
#include "examples/outputs.h"

#include <tessera/tessera.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace optim = tessera::optim;
using tessera::FeatureConfig;
using tessera::RaggedFeature;
using torch::Tensor;

namespace {

struct Options {
  std::string data = ".deps/data/ml-100k";
  std::string vectors = {};  // file
  int64_t seed = 0;
  int64_t epochs = 8;
  int64_t baseline_epochs = 20;
  int64_t batch = 1000;
  int64_t user = 1;
  bool validation = false;
  bool json = false;
};

constexpr int64_t kAgeGroups = 14;  // of five years
constexpr int64_t kYears = 18;  // decades up to 1989, then single years
constexpr int64_t kLatest = 10;  // movies
constexpr double kForget = 0.8;  // a movie's weight, for each one after it
constexpr int64_t kDepths[] = {10, 50, 100};

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

// Bags that are filled one after the other.
class Bags {
 public:
  void add(int64_t id) {
    ids_.push_back(id);
  }
  void end_bag() {
    splits_.push_back(static_cast<int64_t>(ids_.size()));
  }
  RaggedFeature feature() const {
    return {int64_tensor(ids_), int64_tensor(splits_)};
  }

 private:
  std::vector<int64_t> ids_;
  std::vector<int64_t> splits_{0};
};

// What a tower takes.
struct Inputs {
  tessera::Features features = {};
  tessera::Weights weights = {};
};

// A user, before the movie at this position of the user's sequence.
struct Moment {
  int64_t user = 0;
  size_t position = 0;
};

// The movies of each user in the order of rating; the last one is held out.
class Dataset {
 public:
  Dataset(MovieLens data, const Options& options) : data_(std::move(data)) {
    std::vector<MovieLens::Rating> ratings = data_.ratings;
    std::stable_sort(
        ratings.begin(), ratings.end(), [](const auto& a, const auto& b) {
          return a.seconds < b.seconds;
        });
    sequences_.resize(data_.users.size());
    for (const MovieLens::Rating& rating : ratings) {
      sequences_[rating.user].push_back(rating.movie);
    }
    shares_ = torch::zeros({movies()});
    for (size_t user = 0; user < sequences_.size(); ++user) {
      std::vector<int64_t>& sequence = sequences_[user];
      if (options.validation && !sequence.empty()) {
        sequence.pop_back();
      }
      for (size_t i = 0; i < sequence.size(); ++i) {
        const Moment moment{static_cast<int64_t>(user), i};
        if (i + 1 < sequence.size()) {
          train_.push_back(moment);
          shares_[sequence[i]] += 1.0;
        } else if (i > 0) {
          test_.push_back(moment);
        }
      }
    }
    TORCH_CHECK_VALUE(
        !test_.empty(),
        "[two_tower] expected users with two ratings or more, but got none of",
        " them. Fetch the data again.");
    counts_ = shares_.clone();
    shares_ /= static_cast<double>(train_.size());
  }

  const MovieLens& data() const {
    return data_;
  }
  const std::vector<Moment>& train() const {
    return train_;
  }
  const std::vector<Moment>& test() const {
    return test_;
  }
  int64_t movies() const {
    return static_cast<int64_t>(data_.movies.size());
  }
  int64_t movie_of(const Moment& moment) const {
    return sequences_[moment.user][moment.position];
  }
  // How often each movie is in the training data, [movies].
  const Tensor& counts() const {
    return counts_;
  }
  // The chance of each to be a training example's movie, [movies].
  const Tensor& shares() const {
    return shares_;
  }

  // The movie of each moment, [moments].
  Tensor movies_of(const std::vector<Moment>& moments) const {
    std::vector<int64_t> movies;
    for (const Moment& moment : moments) {
      movies.push_back(movie_of(moment));
    }
    return int64_tensor(movies);
  }

  // The movies before each moment.
  RaggedFeature seen(const std::vector<Moment>& moments) const {
    Bags bags;
    for (const Moment& moment : moments) {
      for (size_t i = 0; i < moment.position; ++i) {
        bags.add(sequences_[moment.user][i]);
      }
      bags.end_bag();
    }
    return bags.feature();
  }

  Inputs user_ids(const std::vector<Moment>& moments) const {
    std::vector<int64_t> user;
    for (const Moment& moment : moments) {
      user.push_back(moment.user);
    }
    return {.features = {{"user", int64_tensor(user)}}};
  }

  Inputs users(const std::vector<Moment>& moments) const {
    std::vector<int64_t> user, age, gender, occupation;
    Bags latest;
    std::vector<float> weights;
    for (const Moment& moment : moments) {
      const MovieLens::User& who = data_.users[moment.user];
      user.push_back(moment.user);
      age.push_back(age_group(who.age));
      gender.push_back(who.gender);
      occupation.push_back(who.occupation);
      double weight = 1.0;
      for (size_t i = 1; i <= std::min<size_t>(kLatest, moment.position); ++i) {
        latest.add(sequences_[moment.user][moment.position - i]);
        weights.push_back(static_cast<float>(weight));
        weight *= kForget;
      }
      latest.end_bag();
    }
    return {
        .features =
            {{"user", int64_tensor(user)},
             {"age", int64_tensor(age)},
             {"gender", int64_tensor(gender)},
             {"occupation", int64_tensor(occupation)},
             {"history", seen(moments)},
             {"latest", latest.feature()}},
        .weights = {{"latest", torch::tensor(weights)}}};
  }

  Inputs movies_by_id(const Tensor& ids) const {
    std::vector<int64_t> year;
    Bags genres;
    const auto id = ids.accessor<int64_t, 1>();
    for (int64_t i = 0; i < ids.size(0); ++i) {
      const MovieLens::Movie& movie = data_.movies[id[i]];
      year.push_back(year_group(movie.year));
      for (const int64_t genre : movie.genres) {
        genres.add(genre);
      }
      genres.end_bag();
    }
    return {
        .features = {
            {"movie", ids},
            {"year", int64_tensor(year)},
            {"genres", genres.feature()}}};
  }

 private:
  MovieLens data_;
  std::vector<std::vector<int64_t>> sequences_;  // by user
  std::vector<Moment> train_, test_;
  Tensor counts_, shares_;
};

// How a model is built and trained.
struct Settings {
  bool only_ids = false;
  int64_t dim = 64;
  double dropout = 0.0;
  bool unit_length = false;
  double temperature = 1.0;
  double penalty = 0.0;  // on the squared lengths of what the towers sum up
  double learning_rate = 0.003;
};

// Both were chosen by recall with --validation.
constexpr Settings kTwoTower{
    .dropout = 0.2,
    .unit_length = true,
    .temperature = 0.1};
constexpr Settings kFactorization{.only_ids = true, .penalty = 0.003};

// The sum of what is looked up for each feature.
struct TowerImpl : torch::nn::Module {
  TowerImpl(tessera::TPUEmbeddingOptions options, const Settings& settings)
      : is_unit_length(settings.unit_length) {
    embedding =
        register_module("embedding", tessera::TPUEmbedding(std::move(options)));
    dropout = register_module("dropout", torch::nn::Dropout(settings.dropout));
  }

  // [batch, dim]; adds the squared lengths before dropout to `squares`.
  Tensor forward(const Inputs& inputs, Tensor& squares) {
    const auto found = embedding->forward(inputs.features, inputs.weights);
    Tensor sum;
    for (const auto& [name, activation] : found.entries()) {
      sum = sum.defined() ? sum + activation.leaf() : activation.leaf();
    }
    squares = sum.square().sum();
    sum = dropout->forward(sum);
    return is_unit_length ? torch::nn::functional::normalize(sum) : sum;
  }

  tessera::TPUEmbedding embedding{nullptr};
  torch::nn::Dropout dropout{nullptr};
  bool is_unit_length = false;
};
TORCH_MODULE(Tower);

struct TwoTowerImpl : torch::nn::Module {
  TwoTowerImpl(const Dataset& dataset, const Settings& settings, uint64_t seed)
      : only_ids(settings.only_ids), penalty(settings.penalty) {
    const MovieLens& data = dataset.data();
    const optim::LearningRate rate(
        "table_rate", [this, highest = settings.learning_rate] {
          return highest * remaining;
        });
    using tessera::Combiner;
    const auto table = [&](const char* name,
                           int64_t rows,
                           Combiner combiner = Combiner::kSqrtn) {
      return FeatureConfig{
          .table = tessera::make_table(
              {.name = name,
               .vocabulary_size = rows,
               .dim = settings.dim,
               .combiner = combiner,
               .initializer = tessera::initializers::Normal{.stddev = 0.05},
               .optimizer = optim::Adam{.learning_rate = rate}})};
    };
    const auto tower = [&](tessera::Nest<FeatureConfig> features,
                           uint64_t tower_seed) {
      return Tower(
          tessera::TPUEmbeddingOptions{
              .features = std::move(features), .seed = tower_seed},
          settings);
    };
    const auto users = static_cast<int64_t>(data.users.size());
    const int64_t movies = dataset.movies();
    tessera::Nest<FeatureConfig>::Map of_user{{"user", table("user", users)}};
    tessera::Nest<FeatureConfig>::Map of_movie{
        {"movie", table("movie", movies)}};
    if (!settings.only_ids) {
      const auto occupations = static_cast<int64_t>(data.occupations.size());
      const auto genres = static_cast<int64_t>(data.genres.size());
      of_user.emplace_back("age", table("age", kAgeGroups));
      of_user.emplace_back("gender", table("gender", 2));
      of_user.emplace_back("occupation", table("occupation", occupations));
      of_user.emplace_back("history", table("history", movies));
      of_user.emplace_back("latest", table("latest", movies, Combiner::kSum));
      of_movie.emplace_back("year", table("year", kYears));
      of_movie.emplace_back("genres", table("genre", genres));
    }
    user = register_module(
        "user",
        tower(tessera::Nest<FeatureConfig>::map(std::move(of_user)), 2 * seed));
    movie = register_module(
        "movie",
        tower(
            tessera::Nest<FeatureConfig>::map(std::move(of_movie)),
            2 * seed + 1));
    retrieval = register_module(
        "retrieval",
        tessera::Retrieval(tessera::RetrievalOptions{
            .temperature = settings.temperature,
            .remove_accidental_hits = true,
            .reduction = tessera::LossReduction::kMean}));
  }

  // What to minimise, and the loss in it.
  std::pair<Tensor, Tensor> forward(
      const Dataset& dataset,
      const std::vector<Moment>& moments) {
    const Tensor ids = dataset.movies_of(moments);
    Tensor of_users, of_movies;
    const Tensor queries = user->forward(users(dataset, moments), of_users);
    const Tensor candidates = movie->forward(movies(dataset, ids), of_movies);
    const Tensor loss = retrieval->forward(
        queries,
        candidates,
        {.candidate_ids = ids,
         .candidate_sampling_probability =
             dataset.shares().index_select(0, ids)});
    const auto size = static_cast<double>(moments.size());
    return {loss + (penalty / size) * (of_users + of_movies), loss};
  }

  Inputs users(const Dataset& dataset, const std::vector<Moment>& moments)
      const {
    return only_ids ? dataset.user_ids(moments) : dataset.users(moments);
  }

  Inputs movies(const Dataset& dataset, const Tensor& ids) const {
    return only_ids ? Inputs{.features = {{"movie", ids}}}
                    : dataset.movies_by_id(ids);
  }

  Tensor user_vectors(
      const Dataset& dataset,
      const std::vector<Moment>& moments) {
    const torch::NoGradGuard no_grad;
    Tensor ignored;
    eval();
    Tensor vectors = user->forward(users(dataset, moments), ignored);
    train();
    return vectors;
  }

  Tensor movie_vectors(const Dataset& dataset) {
    const torch::NoGradGuard no_grad;
    Tensor ignored;
    eval();
    Tensor vectors = movie->forward(
        movies(dataset, torch::arange(dataset.movies(), torch::kLong)),
        ignored);
    train();
    return vectors;
  }

  Tower user{nullptr};
  Tower movie{nullptr};
  tessera::Retrieval retrieval{nullptr};
  bool only_ids = false;
  double penalty = 0.0;
  double remaining = 1.0;  // of the training; scales all learning rates
};
TORCH_MODULE(TwoTower);

// The moments in another order, in batches.
std::vector<std::vector<Moment>> shuffled(
    const std::vector<Moment>& moments,
    int64_t batch_size) {
  const auto count = static_cast<int64_t>(moments.size());
  const Tensor order = torch::randperm(count);
  const auto index = order.accessor<int64_t, 1>();
  std::vector<std::vector<Moment>> batches;
  for (int64_t i = 0; i < count; ++i) {
    if (i % batch_size == 0) {
      batches.emplace_back();
    }
    batches.back().push_back(moments[index[i]]);
  }
  return batches;
}

struct Training {
  double seconds = 0.0;
  tessera::training::History history = {};
};

Training train(
    TwoTower& model,
    const Dataset& dataset,
    const Options& options,
    int64_t epochs) {
  const auto count = static_cast<int64_t>(dataset.train().size());
  const auto steps =
      static_cast<double>((count + options.batch - 1) / options.batch * epochs);
  int64_t step = 0;
  const auto progress = std::make_shared<tessera::training::ProgressBar>();
  const tessera::training::History history = tessera::training::fit(
      [&] { return shuffled(dataset.train(), options.batch); },
      [&](const std::vector<Moment>& batch) {
        model->remaining = 1.0 - static_cast<double>(step++) / steps;
        const auto [objective, loss] = model->forward(dataset, batch);
        objective.backward();  // updates the tables
        return tessera::training::StepResult{
            .loss = loss.detach(),
            .examples = static_cast<int64_t>(batch.size())};
      },
      {.epochs = epochs, .callbacks = {progress}});
  return {progress->seconds(), history};
}

// For each depth, the part of the held-out movies that are so near the top.
using Recalls = std::vector<double>;

Recalls recalls_of(const Tensor& ids, const Dataset& dataset) {
  const Tensor is_right =
      ids.eq(dataset.movies_of(dataset.test()).unsqueeze(1)).to(torch::kDouble);
  Recalls recalls;
  for (const int64_t depth : kDepths) {
    const int64_t columns = std::min(depth, ids.size(1));
    recalls.push_back(
        is_right.narrow(1, 0, columns).sum(1).mean().item<double>());
  }
  return recalls;
}

Recalls recalls_of(
    const tessera::TopKIndex& index,
    const Tensor& queries,
    const Dataset& dataset) {
  const int64_t k = std::min(*std::rbegin(kDepths), index.size());
  const tessera::TopK found =
      index.search(queries, k, dataset.seen(dataset.test()));
  return recalls_of(found.ids, dataset);
}

// The most popular first, for everybody: a score per movie, times one.
Recalls recalls_by_popularity(const Dataset& dataset) {
  const auto users = static_cast<int64_t>(dataset.test().size());
  return recalls_of(
      *tessera::make_exact_index(dataset.counts().unsqueeze(1)),
      torch::ones({users, 1}),
      dataset);
}

struct Trained {
  TwoTower model{nullptr};
  Training training = {};
};

Trained trained(
    const Dataset& dataset,
    const Settings& settings,
    const Options& options,
    int64_t epochs) {
  const auto seed = static_cast<uint64_t>(options.seed);
  torch::manual_seed(seed);
  Trained result{.model = TwoTower(dataset, settings, seed)};
  if (!settings.only_ids && !options.json) {
    std::cout << result.model->user->embedding->summary()
              << result.model->movie->embedding->summary() << std::flush;
  }
  result.training = train(result.model, dataset, options, epochs);
  return result;
}

struct Report {
  size_t test_users = 0;
  double factorization_seconds = 0.0;
  double seconds = 0.0;
  std::vector<std::pair<std::string, Recalls>> recalls = {};
  std::vector<std::pair<std::string, double>> movies = {};  // title and score
};

void print_json(const Report& report, const Options& options) {
  tessera::Json json = {
      {"seed", options.seed},
      {"test_users", report.test_users},
      {"factorization_seconds", report.factorization_seconds},
      {"seconds", report.seconds}};
  for (const auto& [name, recalls] : report.recalls) {
    for (size_t i = 0; i < recalls.size(); ++i) {
      json["recall"][name]["@" + std::to_string(kDepths[i])] = recalls[i];
    }
  }
  json["user"] = options.user;
  for (const auto& [title, score] : report.movies) {
    json["movies"].push_back({{"title", title}, {"score", score}});
  }
  std::cout << json.dump(2) << "\n";
}

void print_table(const Report& report, const Options& options) {
  std::cout << "\nrecall of the movie that each of " << report.test_users
            << " users rates next\n"
            << std::left << std::setw(24) << "";
  for (const int64_t depth : kDepths) {
    std::cout << std::setw(9) << "@" + std::to_string(depth);
  }
  std::cout << std::fixed << std::setprecision(4) << "\n";
  for (const auto& [name, recalls] : report.recalls) {
    std::cout << "  " << std::setw(22) << name;
    for (const double recall : recalls) {
      std::cout << std::setw(9) << recall;
    }
    std::cout << "\n";
  }
  std::cout << std::setprecision(1) << "\ntrained in " << report.seconds
            << " s, the matrix factorization in "
            << report.factorization_seconds << " s\n\nfor user " << options.user
            << "\n"
            << std::setprecision(3);
  for (const auto& [title, score] : report.movies) {
    std::cout << "  " << std::right << std::setw(6) << score << "  " << title
              << "\n";
  }
}

// The last moment of the user who is asked for.
Moment asked_moment(const Dataset& dataset, const Options& options) {
  const auto asked = std::find_if(
      dataset.test().begin(), dataset.test().end(), [&](const Moment& moment) {
        return moment.user == options.user - 1;
      });
  TORCH_CHECK_VALUE(
      asked != dataset.test().end(),
      "[two_tower] --user must be in [1, ",
      dataset.data().users.size(),
      "] and have two ratings or more, but got ",
      options.user,
      ".");
  return *asked;
}

// The movies for one moment, with their scores.
std::vector<std::pair<std::string, double>> served_movies(
    TwoTower& model,
    const tessera::TopKIndex& index,
    const Dataset& dataset,
    const Moment& moment) {
  constexpr int64_t kShown = 5;
  const tessera::TopK served = index.search(
      model->user_vectors(dataset, {moment}),
      std::min(kShown, index.size()),
      dataset.seen({moment}));
  std::vector<std::pair<std::string, double>> movies;
  for (int64_t i = 0; i < served.ids.size(1); ++i) {
    const auto movie = served.ids[0][i].item<int64_t>();
    if (movie >= 0) {
      movies.emplace_back(
          dataset.data().movies[movie].title,
          served.scores[0][i].item<double>());
    }
  }
  return movies;
}

// The exit status.
int run(const Options& options) {
  const Dataset dataset(load_movielens(options.data), options);
  const Moment asked = asked_moment(dataset, options);
  check_output_file("[two_tower] --vectors", options.vectors, {options.data});
  Trained factorization =
      trained(dataset, kFactorization, options, options.baseline_epochs);
  Trained towers;
  if (factorization.training.history.stop_signal() == 0) {
    towers = trained(dataset, kTwoTower, options, options.epochs);
  }
  for (const Trained* each : {&factorization, &towers}) {
    if (each->training.history.stop_signal() != 0) {
      return say_stopped(each->training.history, "");
    }
  }
  TwoTower& model = towers.model;

  // A server needs the movies' vectors and the user's tower. --vectors writes the
  // former to a file.
  Tensor vectors = model->movie_vectors(dataset);
  FileErrors errors;
  if (!options.vectors.empty()) {
    errors.run([&] {
      tessera::save_npy(vectors, options.vectors);
      vectors = tessera::load_npy(options.vectors);
      return true;
    });
  }
  const auto exact = tessera::make_exact_index(vectors);
  const Tensor queries = model->user_vectors(dataset, dataset.test());

  Report report{
      .test_users = dataset.test().size(),
      .factorization_seconds = factorization.training.seconds,
      .seconds = towers.training.seconds};
  report.recalls = {
      {"popularity", recalls_by_popularity(dataset)},
      {"matrix factorization",
       recalls_of(
           *tessera::make_exact_index(
               factorization.model->movie_vectors(dataset)),
           factorization.model->user_vectors(dataset, dataset.test()),
           dataset)},
      {"two towers", recalls_of(*exact, queries, dataset)}};
  if (tessera::has_faiss()) {
    const auto approximate =
        tessera::make_faiss_index(vectors, {}, {.ef_search = 200});
    report.recalls.emplace_back(
        "two towers, faiss", recalls_of(*approximate, queries, dataset));
  }
  report.movies = served_movies(model, *exact, dataset, asked);
  if (options.json) {
    print_json(report, options);
  } else {
    print_table(report, options);
  }
  finish_report("two_tower");
  return errors.say() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains two towers on MovieLens 100K to retrieve movies.");
  const CLI::Range positive(int64_t{1}, int64_t{1'000'000});
  app.add_option("--data", options.data, "folder of MovieLens 100K")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of initial values and order")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000}))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the ratings")
      ->check(positive)
      ->capture_default_str();
  app.add_option(
         "--baseline-epochs",
         options.baseline_epochs,
         "the same for the matrix factorization")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "ratings per step")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--user", options.user, "whom to show movies for, from 1")
      ->capture_default_str();
  app.add_option(
         "--vectors", options.vectors, "keep the movies' vectors in this file")
      ->check(refuse_empty);
  app.add_flag(
      "--validation",
      options.validation,
      "hold out each user's last movie but one, and train on those before");
  app.add_flag("--json", options.json, "report as JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "[two_tower] " << error.what() << "\n";
  }
  return 1;
}
