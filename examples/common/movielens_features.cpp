// SPDX-License-Identifier: Apache-2.0
#include "examples/common/movielens_features.h"

#include <torch/types.h>

#include <algorithm>

namespace {

int64_t age_group(int64_t age) {
  return std::min(age / 5, kAgeGroups - 1);
}

int64_t year_group(int64_t year) {
  if (year >= 1990) {
    return std::min(year - 1990 + 8, kYears - 1);
  }
  return year == 0 ? kYears - 1 : std::max<int64_t>(0, (year - 1910) / 10);
}

}  // namespace

at::Tensor int64_tensor(const std::vector<int64_t>& values) {
  return torch::tensor(values, torch::kLong);
}

void Bags::add(int64_t id) {
  ids_.push_back(id);
}

void Bags::end_bag() {
  splits_.push_back(static_cast<int64_t>(ids_.size()));
}

tessera::RaggedFeature Bags::feature() const {
  return {int64_tensor(ids_), int64_tensor(splits_)};
}

tessera::Features::Map user_features(
    const MovieLens& data,
    const std::vector<int64_t>& users) {
  std::vector<int64_t> age, gender, occupation;
  for (const int64_t id : users) {
    const MovieLens::User& user = data.users[id];
    age.push_back(age_group(user.age));
    gender.push_back(user.gender);
    occupation.push_back(user.occupation);
  }
  return {
      {"user", int64_tensor(users)},
      {"age", int64_tensor(age)},
      {"gender", int64_tensor(gender)},
      {"occupation", int64_tensor(occupation)}};
}

tessera::Features::Map movie_features(
    const MovieLens& data,
    const std::vector<int64_t>& movies) {
  std::vector<int64_t> year;
  Bags genres;
  for (const int64_t id : movies) {
    const MovieLens::Movie& movie = data.movies[id];
    year.push_back(year_group(movie.year));
    for (const int64_t genre : movie.genres) {
      genres.add(genre);
    }
    genres.end_bag();
  }
  return {
      {"movie", int64_tensor(movies)},
      {"year", int64_tensor(year)},
      {"genres", genres.feature()}};
}
