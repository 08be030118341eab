// SPDX-License-Identifier: Apache-2.0
#include "examples/new_users/split.h"

#include "examples/common/movielens_data.h"
#include "examples/common/movielens_features.h"

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <random>
#include <tuple>
#include <utility>

namespace {

// Moves the latest fifth of each list to the second result.
std::pair<RatingLists, RatingLists> cut(const RatingLists& lists) {
  RatingLists earlier(lists.size()), latest(lists.size());
  for (size_t user = 0; user < lists.size(); ++user) {
    const auto middle =
        lists[user].end() - static_cast<std::ptrdiff_t>(lists[user].size() / 5);
    earlier[user].assign(lists[user].begin(), middle);
    latest[user].assign(middle, lists[user].end());
  }
  return {std::move(earlier), std::move(latest)};
}

HeldOut hold_out(
    std::vector<int64_t> candidates,
    size_t all,
    double share,
    int64_t seed) {
  TORCH_CHECK_VALUE(
      !candidates.empty(),
      "[new_users] no user or no movie has enough ratings to be held out. Pass other data.");
  // The same order in all runs, of which each run takes the next part.
  std::mt19937_64 random(0);
  std::shuffle(candidates.begin(), candidates.end(), random);
  const auto count = std::max<size_t>(
      1, static_cast<size_t>(share * static_cast<double>(candidates.size())));
  HeldOut result{.is_held_out = std::vector<bool>(all)};
  for (size_t i = 0; i < count; ++i) {
    const int64_t id =
        candidates[(static_cast<size_t>(seed) * count + i) % candidates.size()];
    result.ids.push_back(id);
    result.is_held_out[id] = true;
  }
  return result;
}

RatingLists filtered(
    const RatingLists& lists,
    const std::function<bool(const Rating&)>& is_kept) {
  RatingLists result(lists.size());
  for (size_t i = 0; i < lists.size(); ++i) {
    std::copy_if(
        lists[i].begin(),
        lists[i].end(),
        std::back_inserter(result[i]),
        is_kept);
  }
  return result;
}

tessera::RaggedFeature bags(const RatingLists& lists, int64_t Rating::*id) {
  Bags result;
  for (const Ratings& ratings : lists) {
    for (const Rating& rating : ratings) {
      result.add(rating.*id);
    }
    result.end_bag();
  }
  return result.feature();
}

}  // namespace

Split load_split(const std::string& folder, bool validation) {
  const MovieLens data = load_movielens(folder);
  std::vector<MovieLens::Rating> ratings = data.ratings;
  std::stable_sort(
      ratings.begin(), ratings.end(), [](const auto& a, const auto& b) {
        return a.seconds < b.seconds;
      });
  RatingLists lists(data.users.size());
  for (const MovieLens::Rating& rating : ratings) {
    lists[rating.user].push_back(
        {.user = rating.user, .item = rating.movie, .stars = rating.stars});
  }
  auto [train, test] = cut(lists);
  if (validation) {
    std::tie(train, test) = cut(train);
  }
  const auto items = std::ssize(data.movies);
  torch::Tensor genres = torch::zeros({items, std::ssize(data.genres)});
  for (int64_t item = 0; item < items; ++item) {
    const std::vector<int64_t>& own = data.movies[item].genres;
    for (const int64_t genre : own) {
      genres[item][genre] = 1.0 / static_cast<double>(own.size());
    }
  }
  return {
      .num_users = std::ssize(lists),
      .num_items = items,
      .train = std::move(train),
      .test = std::move(test),
      .genres = genres};
}

HeldOut hold_out_users(const Split& split, double share, int64_t seed) {
  std::vector<int64_t> candidates;
  for (int64_t user = 0; user < split.num_users; ++user) {
    if (!split.test[user].empty()) {
      candidates.push_back(user);
    }
  }
  return hold_out(std::move(candidates), split.train.size(), share, seed);
}

HeldOut hold_out_items(
    const Split& split,
    double share,
    int64_t min_users,
    int64_t seed) {
  const RatingLists train = by_item(split.train, split.num_items);
  const RatingLists test = by_item(split.test, split.num_items);
  std::vector<int64_t> candidates;
  for (int64_t item = 0; item < split.num_items; ++item) {
    if (std::ssize(train[item]) >= min_users && !test[item].empty()) {
      candidates.push_back(item);
    }
  }
  return hold_out(std::move(candidates), train.size(), share, seed);
}

RatingLists without_users(const RatingLists& lists, const HeldOut& users) {
  return filtered(lists, [&](const Rating& rating) {
    return !users.is_held_out[rating.user];
  });
}

RatingLists without_items(const RatingLists& lists, const HeldOut& items) {
  return filtered(lists, [&](const Rating& rating) {
    return !items.is_held_out[rating.item];
  });
}

RatingLists of_items(const RatingLists& lists, const HeldOut& items) {
  return filtered(lists, [&](const Rating& rating) {
    return items.is_held_out[rating.item];
  });
}

RatingLists lists_of(
    const RatingLists& lists,
    const std::vector<int64_t>& ids) {
  RatingLists result;
  for (const int64_t id : ids) {
    result.push_back(lists[id]);
  }
  return result;
}

RatingLists by_item(const RatingLists& lists, int64_t num_items) {
  RatingLists result(static_cast<size_t>(num_items));
  for (const Ratings& ratings : lists) {
    for (const Rating& rating : ratings) {
      result[rating.item].push_back(rating);
    }
  }
  return result;
}

Ratings flatten(const RatingLists& lists) {
  Ratings result;
  for (const Ratings& ratings : lists) {
    result.insert(result.end(), ratings.begin(), ratings.end());
  }
  return result;
}

tessera::RaggedFeature items_of(const RatingLists& lists) {
  return bags(lists, &Rating::item);
}

tessera::RaggedFeature users_of(const RatingLists& lists) {
  return bags(lists, &Rating::user);
}

torch::Tensor stars_of(const Ratings& ratings) {
  std::vector<float> stars;
  for (const Rating& rating : ratings) {
    stars.push_back(rating.stars);
  }
  return torch::tensor(stars, torch::kFloat);
}
