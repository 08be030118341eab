// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/sasrec/options.h"
#include "examples/sasrec/ranking.h"

#include <cstddef>
#include <cstdint>
#include <vector>

/// A training with one seed.
struct Run {
  int64_t seed = 0;
  int64_t epochs = 0;
  int64_t best_epoch = 0;  // counted from 1
  double validation_ndcg = 0.0;
  Ranking test = {};
  double seconds = 0.0;  // of the training steps
  double examples_per_second = 0.0;  // an example is a position with its target
};

/// The results of sasrec.
struct Report {
  size_t users = 0;
  int64_t items = 0;
  Ranking popularity = {};
  Ranking neighbors = {};
  std::vector<Run> runs = {};
};

void print_report(const Report& report, const Options& options);
