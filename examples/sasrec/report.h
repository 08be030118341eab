// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/sasrec/options.h"
#include "examples/sasrec/ranking.h"
#include "examples/sasrec/training.h"

#include <cstddef>
#include <cstdint>
#include <vector>

/// The results of sasrec.
struct Report {
  size_t users = 0;
  int64_t items = 0;
  Ranking popularity = {};
  Ranking neighbors = {};
  std::vector<SequenceRun> runs = {};
};

void print_report(const Report& report, const SequenceOptions& options);
