// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/two_tower/options.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// For each depth, the part of the held-out movies that are so near the top.
using Recalls = std::vector<double>;

constexpr int64_t kDepths[] = {10, 50, 100};

/// What two_tower found out.
struct Report {
  size_t test_users = 0;
  double factorization_seconds = 0.0;
  double seconds = 0.0;
  std::vector<std::pair<std::string, Recalls>> recalls = {};  // by method
  std::vector<std::pair<std::string, double>> movies = {};  // title and score
};

void print_report(const Report& report, const Options& options);
