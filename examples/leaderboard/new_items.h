// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/curve_point.h"
#include "examples/common/item_scorers.h"
#include "examples/leaderboard/interactions.h"
#include "examples/leaderboard/new_item_ranking.h"

#include <tessera/training/history.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The settings of train_simplex().
struct NewItemOptions {
  /// "contrastive", the paper's loss, or "softmax" over sampled items.
  std::string loss = "contrastive";
  int64_t dim = 64;
  double user_share = 1.0;
  int64_t negatives = 1000;
  double temperature = 0.1;  // of the softmax
  double margin = 0.9;  // only of the contrastive loss
  double negative_weight = 150.0;  // only of the contrastive loss
  int64_t batch = 256;  // positive items
  double learning_rate = 0.008;  // of the first step; it falls to zero linearly
  /// The betas of Adam. It has no momentum if beta_1 is 0.
  double beta_1 = 0.0;
  double beta_2 = 0.9;
  int64_t epochs = 40;
  /// The dtypes of the tables' rows and slots. Unset: float32.
  std::optional<std::string> dtype = {};
  std::optional<std::string> slot_dtype = {};
};

/// A training with one seed.
struct NewItemRun {
  NewItemRanking test = {};
  double seconds = 0.0;  // of the training steps
  double evaluation_seconds = 0.0;
  std::vector<CurvePoint> curve = {};  // with `with_curve`, one for each epoch
};

/// Errors:  c10::ValueError for settings that the model or the loss refuses.
void check_model_options(const NewItemOptions& options);

/// Trains SimpleX, and ranks the test items. `run` stays as it is if a signal stopped the
/// training.
tessera::training::History train_simplex(
    const Interactions& data,
    const NewItemOptions& options,
    int64_t seed,
    bool with_curve,
    NewItemRun& run);

/// The test items of users in the order of the scores.
NewItemRanking ranking_by_scores(
    const ItemScores& scores,
    const Interactions& data);
