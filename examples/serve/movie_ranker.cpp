// SPDX-License-Identifier: Apache-2.0
#include "examples/serve/movie_ranker.h"

#include "examples/common/movielens_features.h"

#include <algorithm>
#include <utility>

namespace {

constexpr int64_t kHistory = 20;

tessera::FeatureConfig feature(tessera::TablePtr table) {
  return {.table = std::move(table)};
}

tessera::TablePtr table(const char* name, int64_t rows) {
  return tessera::make_table(
      {.name = name, .vocabulary_size = rows, .dim = 16});
}

tessera::Features joined(
    tessera::Features::Map user,
    tessera::Features::Map movies) {
  user.insert(user.end(), movies.begin(), movies.end());
  return tessera::Features::map(std::move(user));
}

}  // namespace

MovieRankerImpl::MovieRankerImpl(const MovieLens& data) {
  const auto movies = table("movies", std::ssize(data.movies));
  const auto users = tessera::make_table(
      {.name = "users",
       .dim = 16,
       .keys = tessera::DynamicKeys{.capacity = 2000}});
  embedding = register_module(
      "embedding",
      tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
          .features =
              {{"user", feature(users)},
               {"age", feature(table("ages", kAgeGroups))},
               {"gender", feature(table("genders", 2))},
               {"occupation",
                feature(table("occupations", std::ssize(data.occupations)))},
               {"liked", feature(movies)},
               {"movie", feature(movies)},
               {"year", feature(table("years", kYears))},
               {"genres", feature(table("genres", std::ssize(data.genres)))}},
          .optimizer = tessera::optim::Adagrad{.learning_rate = 0.05}}));
  tower = register_module(
      "tower", tessera::MLP(tessera::MLPOptions{.units = {64, 32, 1}}));
}

torch::Tensor MovieRankerImpl::forward(const tessera::Features& features) {
  return tower->forward(embedding->forward(features)).squeeze(1);
}

RatingStream::RatingStream(const MovieLens& data)
    : data_(data), liked_(data.users.size()) {
  for (const MovieLens::Rating& rating : data.ratings) {
    ratings_.push_back({.rating = rating});
  }
  std::stable_sort(
      ratings_.begin(), ratings_.end(), [](const Rated& a, const Rated& b) {
        return a.rating.seconds < b.rating.seconds;
      });
  for (Rated& rated : ratings_) {
    std::vector<int64_t>& liked = liked_[rated.rating.user];
    rated.liked_before = std::ssize(liked);
    if (rated.rating.stars >= 4.0F) {
      liked.push_back(rated.rating.movie);
    }
  }
}

std::vector<int64_t> RatingStream::history(int64_t user, int64_t liked_before)
    const {
  const auto end = liked_.at(user).begin() + liked_before;
  return {end - std::min(liked_before, kHistory), end};
}

std::vector<int64_t> RatingStream::liked(int64_t user) const {
  return history(user, std::ssize(liked_.at(user)));
}

RatingBatch RatingStream::batch(int64_t begin, int64_t end) const {
  std::vector<int64_t> users;
  std::vector<int64_t> movies;
  std::vector<float> labels;
  Bags histories;
  for (int64_t i = begin; i < end; ++i) {
    const auto& [rating, liked_before] = ratings_.at(i);
    users.push_back(rating.user);
    movies.push_back(rating.movie);
    labels.push_back(rating.stars >= 4.0F ? 1.0F : 0.0F);
    for (const int64_t movie : history(rating.user, liked_before)) {
      histories.add(movie);
    }
    histories.end_bag();
  }
  tessera::Features::Map user = user_features(data_, users);
  user.emplace_back("liked", histories.feature());
  return {
      joined(std::move(user), movie_features(data_, movies)),
      torch::tensor(labels)};
}

tessera::Features RatingStream::request(
    int64_t user,
    const std::vector<int64_t>& movies) const {
  Bags history;
  for (const int64_t movie : liked(user)) {
    history.add(movie);
  }
  history.end_bag();
  tessera::Features::Map features = user_features(data_, {user});
  features.emplace_back("liked", history.feature());
  return joined(std::move(features), movie_features(data_, movies));
}
