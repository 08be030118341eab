// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/rating_data.h"

#include "examples/common/batches.h"
#include "examples/common/movielens_features.h"

#include <c10/util/Exception.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace {

// They pull the biases of users and movies with few ratings to 0.
constexpr double kUserRidge = 15.0;
constexpr double kMovieRidge = 10.0;

}  // namespace

RatingData::RatingData(MovieLens data, bool validate) : data_(std::move(data)) {
  constexpr size_t kFewest = 20;  // so that no part is empty
  TORCH_CHECK_VALUE(
      data_.ratings.size() >= kFewest,
      "[movielens] expected ",
      kFewest,
      " ratings or more, but got ",
      data_.ratings.size(),
      ". Download the data again.");
  const auto split = [&](const Ratings& ratings, size_t part) {
    const auto held_out = static_cast<std::ptrdiff_t>(ratings.size() / part);
    test_.assign(ratings.begin(), ratings.begin() + held_out);
    train_.assign(ratings.begin() + held_out, ratings.end());
  };
  split(data_.ratings, 5);
  if (validate) {
    torch::manual_seed(0);
    split(shuffled(train_), 10);
  }
  rated_.resize(data_.users.size());
  raters_.resize(data_.movies.size());
  for (const MovieLens::Rating& rating : train_) {
    rated_[rating.user].push_back(rating);
    raters_[rating.movie].push_back(rating);
    mean_ += rating.stars;
  }
  mean_ /= static_cast<double>(train_.size());
  fit_biases();
}

bool RatingData::is_u1() const {
  return train_.size() == 80'000 && test_.size() == 20'000;
}

Ratings RatingData::unrated(int64_t user) const {
  std::vector<bool> is_rated(data_.movies.size());
  for (const MovieLens::Rating& rating : data_.ratings) {
    if (rating.user == user) {
      is_rated[rating.movie] = true;
    }
  }
  Ratings unrated;
  for (int64_t movie = 0; movie < std::ssize(data_.movies); ++movie) {
    if (!is_rated[movie]) {
      unrated.push_back({.user = user, .movie = movie});
    }
  }
  return unrated;
}

void RatingData::fit_biases() {
  user_biases_.assign(data_.users.size(), 0.0);
  movie_biases_.assign(data_.movies.size(), 0.0);
  const auto fit = [&](const std::vector<Ratings>& ratings,
                       double ridge,
                       std::vector<double>& biases) {
    for (size_t i = 0; i < biases.size(); ++i) {
      double sum = 0.0;
      for (const MovieLens::Rating& rating : ratings[i]) {
        sum += rating.stars - by_biases(rating) + biases[i];
      }
      biases[i] = sum / (static_cast<double>(ratings[i].size()) + ridge);
    }
  };
  for (int round = 0; round < 10; ++round) {
    fit(raters_, kMovieRidge, movie_biases_);
    fit(rated_, kUserRidge, user_biases_);
  }
}

RatingBatch RatingData::batch(const Ratings& ratings) const {
  std::vector<int64_t> users, movies;
  Bags history, raters, pairs;
  std::vector<float> stars, history_weights, raters_weights;
  // Adds the ids of `others`, and the weights of their stars. The rating itself is left
  // out. It has also pulled `bias`, which is that of all of them: this pull is taken back.
  const auto add = [&](const MovieLens::Rating& rating,
                       const Ratings& others,
                       auto id_of,
                       double ridge,
                       double bias,
                       Bags& bags,
                       std::vector<float>& weights) {
    const auto is_same = [&](const MovieLens::Rating& other) {
      return id_of(other) == id_of(rating);
    };
    const auto own = std::find_if(others.begin(), others.end(), is_same);
    const bool has_own = own != others.end();
    const double count = static_cast<double>(others.size()) - (has_own ? 1 : 0);
    double shift = 0.0;
    if (has_own) {
      const double error = own->stars - by_biases(*own);
      const double rest = bias * (count + 1.0 + ridge) - (error + bias);
      shift = bias - rest / (count + ridge);
    }
    const double scale = 1.0 / std::sqrt(std::max(1.0, count));
    for (const MovieLens::Rating& other : others) {
      if (!is_same(other)) {
        bags.add(id_of(other));
        weights.push_back(static_cast<float>(
            (other.stars - by_biases(other) + shift) * scale));
      }
    }
    bags.end_bag();
  };
  for (const MovieLens::Rating& rating : ratings) {
    users.push_back(rating.user);
    movies.push_back(rating.movie);
    stars.push_back(rating.stars);
    add(
        rating,
        rated_[rating.user],
        [](const auto& other) { return other.movie; },
        kUserRidge,
        user_biases_[rating.user],
        history,
        history_weights);
    add(
        rating,
        raters_[rating.movie],
        [](const auto& other) { return other.user; },
        kMovieRidge,
        movie_biases_[rating.movie],
        raters,
        raters_weights);
    for (const MovieLens::Rating& other : raters_[rating.movie]) {
      if (other.user != rating.user) {
        pairs.add(rating.user * std::ssize(data_.users) + other.user);
      }
    }
    pairs.end_bag();
  }
  tessera::Features::Map features = user_features(data_, users);
  for (auto& feature : movie_features(data_, movies)) {
    features.push_back(std::move(feature));
  }
  features.emplace_back("user_bias", int64_tensor(users));
  features.emplace_back("movie_bias", int64_tensor(movies));
  features.emplace_back("user_pairs", pairs.feature());
  for (const char* name : {"history", "history_stars"}) {
    features.emplace_back(name, history.feature());
  }
  for (const char* name : {"raters", "raters_stars"}) {
    features.emplace_back(name, raters.feature());
  }
  return {
      .features = tessera::Features::map(std::move(features)),
      .weights =
          {{"history_stars", torch::tensor(history_weights)},
           {"raters_stars", torch::tensor(raters_weights)}},
      .stars = torch::tensor(stars)};
}
