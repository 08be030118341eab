// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/curve_point.h"
#include "examples/common/item_scorers.h"
#include "examples/sasrec/histories.h"
#include "examples/sasrec/options.h"
#include "examples/sasrec/ranking.h"

#include <tessera/training/history.h>

#include <cstdint>
#include <vector>

/// A training with one seed.
struct SequenceRun {
  int64_t seed = 0;
  int64_t epochs = 0;
  int64_t best_epoch = 0;  // counted from 1
  double validation_ndcg = 0.0;
  Ranking test = {};
  double seconds = 0.0;  // of the training steps
  double examples_per_second = 0.0;  // an example is a position with its target
  double evaluation_seconds = 0.0;  // for the ranks of all test items
  std::vector<CurvePoint> curve = {};  // one point for each epoch
  ItemScores scores = {};  // of the trained model
};

/// Errors:  c10::ValueError for settings that the model refuses.
void check_model_options(const SequenceOptions& options);

/// Trains SASRec until the validation items are ranked no better for some epochs, and
/// ranks the test items with the weights of the best epoch. `run` stays as it is if a
/// signal stopped the training.
tessera::training::History train_sasrec(
    const Histories& histories,
    const SequenceOptions& options,
    int64_t seed,
    SequenceRun& run);
