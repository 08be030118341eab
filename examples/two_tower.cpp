// SPDX-License-Identifier: Apache-2.0
// Teaches retrieval with two towers on MovieLens 100K: which of all movies does a user
// rate next? An exact search finds the best movies. If faiss is installed, an
// approximate search does so, too.
//
//   score = <tower(user), tower(movie)>
//
// The user's tower sums the user's embeddings (id, age, gender, occupation, the movies
// rated so far and the latest of them), and the movie's tower those of the movie (id,
// genres, year). Each user's last movie is held out. Movies that the user has rated
// before are not candidates.
//
// The data is in two_tower/sequences.cpp, and the model is in two_tower/two_towers.cpp.
// The functions of this file train, compare the model with two simpler methods, and
// recommend movies, in this order. run() calls them.
#include "examples/common/batches.h"
#include "examples/common/command_line.h"
#include "examples/common/outputs.h"
#include "examples/two_tower/options.h"
#include "examples/two_tower/report.h"
#include "examples/two_tower/sequences.h"
#include "examples/two_tower/two_towers.h"

#include <tessera/tessera.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace training = tessera::training;
using torch::Tensor;

namespace {

// Both settings have the best recall with --validation.
constexpr Settings kTwoTowers{
    .dropout = 0.2,
    .unit_length = true,
    .temperature = 0.1};
constexpr Settings kFactorization{.only_ids = true, .penalty = 0.003};

struct Trained {
  TwoTowers model{nullptr};
  double seconds = 0.0;
  training::History history = {};
};

Trained train(
    const Sequences& sequences,
    const Settings& settings,
    const Options& options,
    int64_t epochs) {
  const int64_t steps =
      epochs * number_of_batches(sequences.train().size(), options.batch);
  const auto seed = static_cast<uint64_t>(options.seed);
  torch::manual_seed(seed);
  TwoTowers model(sequences, settings, seed, steps);
  if (!settings.only_ids && !options.json) {
    std::cout << model->user->embedding->summary()
              << model->movie->embedding->summary() << std::flush;
  }
  const auto progress = std::make_shared<training::ProgressBar>();
  training::History history = training::fit(
      [&] { return in_batches(shuffled(sequences.train()), options.batch); },
      [&](const Examples& batch) {
        const auto [loss, objective] = model->forward(sequences, batch);
        objective.backward();  // updates the tables; there are no other weights
        return training::StepResult{
            .loss = loss.detach(),
            .examples = static_cast<int64_t>(batch.size())};
      },
      {.epochs = epochs, .callbacks = {progress}});
  return {model, progress->seconds(), std::move(history)};
}

// Returns the recall at each depth. `queries` are the vectors of the test's users.
Recalls recalls_of(
    const tessera::TopKIndex& index,
    const Tensor& queries,
    const Sequences& sequences) {
  const Examples& test = sequences.test();
  const int64_t k = std::min(*std::rbegin(kDepths), index.size());
  const tessera::TopK found = index.search(queries, k, sequences.seen(test));
  Recalls recalls;
  for (const int64_t depth : kDepths) {
    training::RecallAtK recall({.k = depth});
    recall.update(found.ids, sequences.movies_of(test));
    recalls.push_back(recall.result());
  }
  return recalls;
}

// Recommends the most popular movies to all users: each movie's vector is its number of
// ratings, and each user's vector is 1.
Recalls recalls_by_popularity(const Sequences& sequences) {
  const int64_t users = std::ssize(sequences.test());
  return recalls_of(
      *tessera::make_exact_index(sequences.counts().unsqueeze(1)),
      torch::ones({users, 1}),
      sequences);
}

Recalls recalls_by_factorization(
    TwoTowers& factorization,
    const Sequences& sequences) {
  return recalls_of(
      *tessera::make_exact_index(factorization->movie_vectors(sequences)),
      factorization->user_vectors(sequences, sequences.test()),
      sequences);
}

// The held-out example of the user in --user.
Example requested_example(const Sequences& sequences, const Options& options) {
  const Examples& test = sequences.test();
  const auto requested =
      std::find_if(test.begin(), test.end(), [&](const Example& example) {
        return example.user == options.user - 1;
      });
  TORCH_CHECK_VALUE(
      requested != test.end(),
      "[two_tower] --user must be in [1, ",
      sequences.movielens().users.size(),
      "] and have two ratings or more, but got ",
      options.user,
      ". Choose another user.");
  return *requested;
}

// Returns the best movies for one example, with their scores.
std::vector<std::pair<std::string, double>> served_movies(
    TwoTowers& model,
    const tessera::TopKIndex& index,
    const Sequences& sequences,
    const Example& example) {
  constexpr int64_t kMaxShown = 5;
  const tessera::TopK served = index.search(
      model->user_vectors(sequences, {example}),
      std::min(kMaxShown, index.size()),
      sequences.seen({example}));
  std::vector<std::pair<std::string, double>> movies;
  for (int64_t i = 0; i < served.ids.size(1); ++i) {
    const auto movie = served.ids[0][i].item<int64_t>();
    if (movie >= 0) {
      movies.emplace_back(
          sequences.movielens().movies[movie].title,
          served.scores[0][i].item<double>());
    }
  }
  return movies;
}

// Returns the exit status.
int run(const Options& options) {
  const Sequences sequences(load_movielens(options.data), options.validation);
  const Example requested = requested_example(sequences, options);
  check_output_file("[two_tower] --vectors", options.vectors, {options.data});
  Trained factorization =
      train(sequences, kFactorization, options, options.baseline_epochs);
  if (factorization.history.stop_signal() != 0) {
    return report_stop(factorization.history, "");
  }
  Trained towers = train(sequences, kTwoTowers, options, options.epochs);
  if (towers.history.stop_signal() != 0) {
    return report_stop(towers.history, "");
  }

  // A server needs the movies' vectors and the user's tower. --vectors writes the vectors
  // to a file.
  Tensor vectors = towers.model->movie_vectors(sequences);
  FileErrors errors;
  if (!options.vectors.empty()) {
    errors.run([&] {
      tessera::save_npy(vectors, options.vectors);
      vectors = tessera::load_npy(options.vectors);
      return true;
    });
  }
  const auto exact = tessera::make_exact_index(vectors);
  const Tensor queries =
      towers.model->user_vectors(sequences, sequences.test());

  Report report{
      .test_users = sequences.test().size(),
      .factorization_seconds = factorization.seconds,
      .seconds = towers.seconds};
  report.recalls = {
      {"popularity", recalls_by_popularity(sequences)},
      {"matrix factorization",
       recalls_by_factorization(factorization.model, sequences)},
      {"two towers", recalls_of(*exact, queries, sequences)}};
  if (tessera::has_faiss()) {
    const auto approximate =
        tessera::make_faiss_index(vectors, {}, {.ef_search = 200});
    report.recalls.emplace_back(
        "two towers, faiss", recalls_of(*approximate, queries, sequences));
  }
  report.movies = served_movies(towers.model, *exact, sequences, requested);
  print_report(report, options);
  finish_report("two_tower");
  return errors.print() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  Options options;
  if (const auto status = parse_arguments(argc, argv, options)) {
    return *status;
  }
  return run_program("two_tower", [&] { return run(options); });
}
