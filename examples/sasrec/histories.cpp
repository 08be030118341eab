// SPDX-License-Identifier: Apache-2.0
#include "examples/sasrec/histories.h"

#include "examples/common/movielens_features.h"

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <utility>

using torch::Tensor;

Histories::Histories(const MovieLens& data, int64_t max_length)
    : max_length_(static_cast<size_t>(max_length)),
      num_movies_(std::ssize(data.movies)) {
  std::vector<MovieLens::Rating> ratings = data.ratings;
  std::stable_sort(
      ratings.begin(), ratings.end(), [](const auto& a, const auto& b) {
        return a.seconds < b.seconds;
      });
  std::vector<std::vector<int64_t>> all(data.users.size());
  for (const MovieLens::Rating& rating : ratings) {
    all[rating.user].push_back(rating.movie);
  }
  for (std::vector<int64_t>& movies : all) {
    if (movies.size() >= 4) {  // two of them are for training
      train_users_.push_back(movies_.size());
    }
    if (movies.size() >= 3) {
      movies_.push_back(std::move(movies));
    }
  }
  TORCH_CHECK_VALUE(
      !train_users_.empty(),
      "[sasrec] expected users with four ratings or more, but there are none. "
      "Download the data again.");
}

Histories::Batch Histories::batch(const std::vector<size_t>& users) const {
  Bags sequences;
  std::vector<int64_t> targets;
  for (const size_t user : users) {
    const std::vector<int64_t>& movies = movies_[user];
    const size_t last = movies.size() - 3;  // the last one of the training
    for (size_t i = last - std::min(last, max_length_); i < last; ++i) {
      sequences.add(movies[i]);
      targets.push_back(movies[i + 1]);
    }
    sequences.end_bag();
  }
  return {.sequences = sequences.feature(), .targets = int64_tensor(targets)};
}

Histories::Batch Histories::batch(
    const std::vector<size_t>& users,
    std::mt19937_64& random) const {
  Batch result = batch(users);
  std::uniform_int_distribution<int64_t> any(0, num_movies_ - 1);
  std::vector<int64_t> negatives;
  for (const size_t user : users) {
    const std::vector<int64_t>& movies = movies_[user];
    std::vector<bool> is_rated(static_cast<size_t>(num_movies_));
    for (size_t i = 0; i + 2 < movies.size(); ++i) {
      is_rated[movies[i]] = true;
    }
    for (size_t i = std::min(movies.size() - 3, max_length_); i > 0; --i) {
      int64_t negative = any(random);
      while (is_rated[negative]) {
        negative = any(random);
      }
      negatives.push_back(negative);
    }
  }
  result.negatives = int64_tensor(negatives);
  return result;
}

size_t Histories::end_of(size_t user, HeldOut which) const {
  return movies_[user].size() - (which == HeldOut::kTest ? 1 : 2);
}

Tensor Histories::held_out(HeldOut which) const {
  std::vector<int64_t> result;
  for (size_t user = 0; user < movies_.size(); ++user) {
    result.push_back(movies_[user][end_of(user, which)]);
  }
  return int64_tensor(result);
}

tessera::RaggedFeature Histories::bags(HeldOut which, size_t max_length) const {
  Bags result;
  for (size_t user = 0; user < movies_.size(); ++user) {
    const size_t end = end_of(user, which);
    for (size_t i = end - std::min(end, max_length); i < end; ++i) {
      result.add(movies_[user][i]);
    }
    result.end_bag();
  }
  return result.feature();
}

tessera::RaggedFeature Histories::seen(HeldOut which) const {
  return bags(which, std::numeric_limits<size_t>::max());
}

tessera::RaggedFeature Histories::latest(HeldOut which) const {
  return bags(which, max_length_);
}

Tensor Histories::seen_matrix(HeldOut which) const {
  Tensor result = torch::zeros({std::ssize(movies_), num_movies_});
  auto values = result.accessor<float, 2>();
  for (size_t user = 0; user < movies_.size(); ++user) {
    for (size_t i = 0; i < end_of(user, which); ++i) {
      values[static_cast<int64_t>(user)][movies_[user][i]] = 1.0F;
    }
  }
  return result;
}
