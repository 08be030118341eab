// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/new_users/split.h"

#include <tessera/models/fold_in.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

/// A trained ranking model: a score is the dot product of the vectors of user and item.
struct Ranker {
  at::Tensor users = {};  // [users, dim]
  at::Tensor items = {};  // [items, dim]
  /// Computes the vectors of users from their ratings. Empty if each user has a row.
  std::function<at::Tensor(const RatingLists&)> tower = {};
};

/// A kind of ranking model, and how vectors are folded in.
struct RankerKind {
  const char* name;  // for --only
  const char* title;
  bool has_unit_vectors;  // scores are cosines
  /// Not used if the model has a tower.
  tessera::FoldInOptions new_users;
  tessera::FoldInOptions new_items;
  std::function<Ranker(const RatingLists&, int64_t num_items, int64_t seed)>
      train;
};

const std::vector<RankerKind>& ranker_kinds();
