// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/two_tower/options.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// For each depth k in kDepths, the fraction of held-out movies among the first k.
using Recalls = std::vector<double>;

constexpr int64_t kDepths[] = {10, 50, 100};

/// The results of two_tower.
struct Report {
  size_t test_users = 0;
  double factorization_seconds = 0.0;
  double seconds = 0.0;
  std::vector<std::pair<std::string, Recalls>> recalls = {};  // by method
  std::vector<std::pair<std::string, double>> movies = {};  // title and score
};

void print_report(const Report& report, const Options& options);
