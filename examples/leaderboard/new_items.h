// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/curve_point.h"
#include "examples/leaderboard/interactions.h"

#include <tessera/common/json.h>
#include <tessera/training/history.h>

#include <cstdint>
#include <vector>

/// How well the test items are ranked among all items that a user has not in training:
/// means over the users with test items.
struct NewItemRanking {
  double recall = 0.0;  // the share of the test items among the first 20
  /// The sum of 1 / log2(rank + 1) of the test items among the first 20, divided by that of
  /// a perfect order.
  double ndcg = 0.0;
};

/// The settings of train_simplex().
struct NewItemOptions {
  int64_t dim = 64;
  double user_share = 0.5;
  int64_t negatives = 2000;
  double temperature = 0.1;
  int64_t batch = 2048;  // positive items
  double learning_rate = 0.004;  // of the first step; it falls to zero linearly
  int64_t epochs = 60;
};

/// Writes the settings.
tessera::Json json_of(const NewItemOptions& options);

/// A training with one seed.
struct NewItemRun {
  NewItemRanking test = {};
  double seconds = 0.0;  // of the training steps
  double evaluation_seconds = 0.0;
  std::vector<CurvePoint> curve = {};  // with `with_curve`, one for each epoch
};

/// Trains SimpleX, and ranks the test items. `run` stays as it is if a signal stopped the
/// training.
tessera::training::History train_simplex(
    const Interactions& data,
    const NewItemOptions& options,
    int64_t seed,
    bool with_curve,
    NewItemRun& run);

/// Ranks by the number of users who have an item.
NewItemRanking ranking_by_popularity(const Interactions& data);
/// Ranks by the sum of the cosine similarities to the user's items. Each item counts for
/// its 200 nearest neighbors.
NewItemRanking ranking_by_neighbors(const Interactions& data);
