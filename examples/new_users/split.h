// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

/// A rating of a movie by a user.
struct Rating {
  int64_t user = 0;
  int64_t item = 0;
  float stars = 0.0F;
};

using Ratings = std::vector<Rating>;

/// The ratings of each user, or of each item, in the order of time.
using RatingLists = std::vector<Ratings>;

/// The ratings of MovieLens 100K. The latest fifth of each user's ratings is the test.
struct Split {
  int64_t num_users = 0;
  int64_t num_items = 0;
  RatingLists train = {};  // of each user
  RatingLists test = {};  // of each user
  /// Each row has 1 / (number of genres) for each genre of an item, [items, genres].
  at::Tensor genres = {};
};

/// With `validation`, the test is ignored, and the latest fifth of the other ratings is the
/// test.
/// Errors:  c10::ValueError naming file and line if a file is missing or damaged.
Split load_split(const std::string& folder, bool validation);

/// Users or items that are held out.
struct HeldOut {
  std::vector<int64_t> ids = {};
  std::vector<bool> is_held_out = {};  // of each user or item
};

/// A share of the users who have test ratings. Runs with the seeds 0, 1, ... hold out
/// different users until each was held out once.
/// Errors:  c10::ValueError if there are none.
HeldOut hold_out_users(const Split& split, double share, int64_t seed);

/// The same for items that have test ratings, and `min_users` training users or more.
HeldOut hold_out_items(
    const Split& split,
    double share,
    int64_t min_users,
    int64_t seed);

RatingLists without_users(const RatingLists& lists, const HeldOut& users);
RatingLists without_items(const RatingLists& lists, const HeldOut& items);
/// Only the ratings of these items.
RatingLists of_items(const RatingLists& lists, const HeldOut& items);
/// Some of the lists.
RatingLists lists_of(const RatingLists& lists, const std::vector<int64_t>& ids);
/// The ratings of each item.
RatingLists by_item(const RatingLists& lists, int64_t num_items);

Ratings flatten(const RatingLists& lists);

/// The items of each list.
tessera::RaggedFeature items_of(const RatingLists& lists);
/// The users of each list.
tessera::RaggedFeature users_of(const RatingLists& lists);
at::Tensor stars_of(const Ratings& ratings);  // [ratings]
