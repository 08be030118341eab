// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/item_scorers.h"

#include <tessera/common/json.h>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

/// A fitted method, and the settings that it has.
struct ScorerVariant {
  tessera::Json settings = tessera::Json::object();
  ItemScores scores = {};
};

/// Fits a method to the items of users, and returns it with each setting that may change
/// afterwards, such as the weight of older items.
using ScorerFit =
    std::function<std::vector<ScorerVariant>(const ItemLists& train)>;

/// The best setting on validation items.
struct ScorerChoice {
  ScorerFit fit = {};
  size_t variant = 0;
  tessera::Json settings = tessera::Json::object();
  double validation = 0.0;
  tessera::Json tries =
      tessera::Json::array();  // all settings with their values
  double seconds = 0.0;  // of all tries

  ItemScores fit_to(const ItemLists& train) const {
    return fit(train)[variant].scores;
  }
};

/// Tries all settings, and returns the one with the highest value of `validate`, the first
/// one of several.
ScorerChoice choose_scorer(
    const std::vector<ScorerFit>& fits,
    const ItemLists& train,
    const std::function<double(const ItemScores&)>& validate);

/// The weight of an older item, compared with the next one.
enum class ItemOrder {
  kTime,  // it is chosen, too
  kNone  // all items of a user have the same weight
};

// The settings that are tried. Their names are in the sources.
std::vector<ScorerFit> ease_fits(int64_t num_items, ItemOrder order);
std::vector<ScorerFit> neighbor_fits(int64_t num_items, ItemOrder order);
std::vector<ScorerFit> rp3beta_fits(int64_t num_items, ItemOrder order);
/// The published settings of ChebyCF for Gowalla, arXiv:2505.00552.
ScorerFit graph_filter_fit(int64_t num_items);
