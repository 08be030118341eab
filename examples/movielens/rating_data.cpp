// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/rating_data.h"

#include "examples/common/batches.h"
#include "examples/common/movielens_features.h"

#include <c10/util/Exception.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>

RatingData::RatingData(MovieLens data, int64_t seed) : data_(std::move(data)) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  const Ratings ratings = shuffled(data_.ratings);
  const auto held_out = static_cast<std::ptrdiff_t>(ratings.size() / 10);
  test_.assign(ratings.begin(), ratings.begin() + held_out);
  train_.assign(ratings.begin() + held_out, ratings.end());
  rated_.resize(data_.users.size());
  raters_.resize(data_.movies.size());
  for (const MovieLens::Rating& rating : train_) {
    rated_[rating.user].push_back(rating);
    raters_[rating.movie].push_back(rating);
    mean_ += rating.stars;
  }
  mean_ /= static_cast<double>(train_.size());
  TORCH_CHECK_VALUE(
      !test_.empty(),
      "[movielens] expected 10 ratings or more, but got ",
      train_.size(),
      ". Download the data again.");
}

Ratings RatingData::unrated(int64_t user) const {
  const Ratings& rated = rated_[user];
  Ratings unrated;
  for (int64_t movie = 0; movie < std::ssize(data_.movies); ++movie) {
    if (std::none_of(rated.begin(), rated.end(), [&](const auto& rating) {
          return rating.movie == movie;
        })) {
      unrated.push_back({.user = user, .movie = movie});
    }
  }
  return unrated;
}

RatingBatch RatingData::batch(const Ratings& ratings) const {
  std::vector<int64_t> users, movies;
  Bags history, raters;
  std::vector<float> stars, history_weights;
  for (const MovieLens::Rating& rating : ratings) {
    users.push_back(rating.user);
    movies.push_back(rating.movie);
    for (const MovieLens::Rating& other : rated_[rating.user]) {
      if (other.movie != rating.movie) {
        history.add(other.movie);
        // A movie that the user liked says more about the user.
        history_weights.push_back(other.stars);
      }
    }
    history.end_bag();
    for (const MovieLens::Rating& other : raters_[rating.movie]) {
      if (other.user != rating.user) {
        raters.add(other.user);
      }
    }
    raters.end_bag();
    stars.push_back(rating.stars);
  }
  tessera::Features::Map features = user_features(data_, users);
  for (auto& feature : movie_features(data_, movies)) {
    features.push_back(std::move(feature));
  }
  features.emplace_back("user_bias", int64_tensor(users));
  features.emplace_back("movie_bias", int64_tensor(movies));
  features.emplace_back("history", history.feature());
  features.emplace_back("raters", raters.feature());
  return {
      .features = tessera::Features::map(std::move(features)),
      .weights = {{"history", torch::tensor(history_weights)}},
      .stars = torch::tensor(stars)};
}

at::Tensor predict_by_biases(const RatingData& data) {
  constexpr double kUserRidge = 15.0;
  constexpr double kMovieRidge = 10.0;
  std::vector<double> user(data.movielens().users.size(), 0.0);
  std::vector<double> movie(data.movielens().movies.size(), 0.0);
  const auto fit = [&](auto id_of, double ridge, auto& biases, auto rest_of) {
    std::vector<double> sums(biases.size(), 0.0);
    std::vector<double> counts(biases.size(), ridge);
    for (const MovieLens::Rating& rating : data.train()) {
      sums[id_of(rating)] += rating.stars - data.mean() - rest_of(rating);
      counts[id_of(rating)] += 1.0;
    }
    for (size_t i = 0; i < biases.size(); ++i) {
      biases[i] = sums[i] / counts[i];
    }
  };
  const auto user_of = [](const auto& rating) { return rating.user; };
  const auto movie_of = [](const auto& rating) { return rating.movie; };
  for (int round = 0; round < 10; ++round) {
    fit(movie_of, kMovieRidge, movie, [&](const auto& rating) {
      return user[rating.user];
    });
    fit(user_of, kUserRidge, user, [&](const auto& rating) {
      return movie[rating.movie];
    });
  }
  std::vector<float> predicted;
  for (const MovieLens::Rating& rating : data.test()) {
    predicted.push_back(static_cast<float>(
        data.mean() + user[rating.user] + movie[rating.movie]));
  }
  return torch::tensor(predicted);
}
