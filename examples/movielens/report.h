// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/movielens/options.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// The results of movielens.
struct Report {
  size_t test_ratings = 0;
  bool is_u1 = false;  // the test ratings are those of u1.test
  /// Root mean squared errors on the test ratings.
  double rmse_mean = 0.0;
  double rmse_biases = 0.0;
  double rmse = 0.0;
  double seconds = 0.0;
  /// Examples trained on in this run. 0: a resumed training had no steps left.
  int64_t examples = 0;
  /// The best movies for the user, with their predicted stars.
  std::vector<std::pair<std::string, double>> movies = {};
  /// True if the predictions stayed the same. It is unset if a file could not be written.
  std::optional<bool> equal_after_reload = {};
  std::optional<bool> equal_from_export = {};
  bool equal_over_ranks = true;
  int64_t ranks = 1;

  bool is_good() const {
    return equal_after_reload.value_or(false) &&
        equal_from_export.value_or(false) && equal_over_ranks;
  }
};

void print_report(const Report& report, const Options& options);
