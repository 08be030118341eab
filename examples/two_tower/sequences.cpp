// SPDX-License-Identifier: Apache-2.0
#include "examples/two_tower/sequences.h"

#include "examples/common/movielens_features.h"

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>

using torch::Tensor;

namespace {

constexpr size_t kLatest = 10;  // movies in the feature "latest"
// Each later movie multiplies a movie's weight by this factor.
constexpr double kDecay = 0.8;

}  // namespace

Sequences::Sequences(MovieLens data, bool validation) : data_(std::move(data)) {
  std::vector<MovieLens::Rating> ratings = data_.ratings;
  std::stable_sort(
      ratings.begin(), ratings.end(), [](const auto& a, const auto& b) {
        return a.seconds < b.seconds;
      });
  sequences_.resize(data_.users.size());
  for (const MovieLens::Rating& rating : ratings) {
    sequences_[rating.user].push_back(rating.movie);
  }
  counts_ = torch::zeros({std::ssize(data_.movies)});
  for (size_t user = 0; user < sequences_.size(); ++user) {
    std::vector<int64_t>& sequence = sequences_[user];
    if (validation && !sequence.empty()) {
      sequence.pop_back();
    }
    for (size_t i = 0; i < sequence.size(); ++i) {
      const Example example{static_cast<int64_t>(user), i};
      if (i + 1 < sequence.size()) {
        train_.push_back(example);
        counts_[sequence[i]] += 1.0;
      } else if (i > 0) {
        test_.push_back(example);
      }
    }
  }
  TORCH_CHECK_VALUE(
      !test_.empty(),
      "[two_tower] expected users with two ratings or more, but there are none. "
      "Download the data again.");
  probabilities_ = counts_ / static_cast<double>(train_.size());
}

Tensor Sequences::movies_of(const Examples& examples) const {
  std::vector<int64_t> movies;
  for (const Example& example : examples) {
    movies.push_back(sequences_[example.user][example.position]);
  }
  return int64_tensor(movies);
}

tessera::RaggedFeature Sequences::seen(const Examples& examples) const {
  Bags bags;
  for (const Example& example : examples) {
    for (size_t i = 0; i < example.position; ++i) {
      bags.add(sequences_[example.user][i]);
    }
    bags.end_bag();
  }
  return bags.feature();
}

TowerInputs Sequences::users(const Examples& examples, bool only_ids) const {
  std::vector<int64_t> users;
  for (const Example& example : examples) {
    users.push_back(example.user);
  }
  if (only_ids) {
    return {.features = {{"user", int64_tensor(users)}}};
  }
  Bags latest;
  std::vector<float> weights;
  for (const Example& example : examples) {
    double weight = 1.0;
    for (size_t i = 1; i <= std::min(kLatest, example.position); ++i) {
      latest.add(sequences_[example.user][example.position - i]);
      weights.push_back(static_cast<float>(weight));
      weight *= kDecay;
    }
    latest.end_bag();
  }
  tessera::Features::Map features = user_features(data_, users);
  features.emplace_back("history", seen(examples));
  features.emplace_back("latest", latest.feature());
  return {
      .features = tessera::Features::map(std::move(features)),
      .weights = {{"latest", torch::tensor(weights)}}};
}

TowerInputs Sequences::movies(const Tensor& ids, bool only_ids) const {
  if (only_ids) {
    return {.features = {{"movie", ids}}};
  }
  const int64_t* begin = ids.const_data_ptr<int64_t>();
  return {
      .features = tessera::Features::map(
          movie_features(data_, {begin, begin + ids.numel()}))};
}
