// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/leaderboard/data_sets.h"
#include "examples/leaderboard/results.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

/// A model, or a simple method, on a data set.
struct Job {
  std::string model = {};
  tessera::Json settings = tessera::Json::object();
  /// False for a method without random numbers, which runs once.
  bool has_seeds = true;
  /// Trains with the seed, and fills what a Result has besides the names, seed, settings
  /// and machine. Returns nothing if a signal stopped the training.
  std::function<std::optional<Result>(int64_t seed)> run = {};
};

/// The jobs on a data set. Its files are read by the first job that runs. The path of
/// ML-100K is the folder of MovieLens 100K. With `validate`, a part of the training data of
/// Gowalla and ML-100K takes the place of the test data, to choose settings. The other data
/// sets have items for validation in any case.
std::vector<Job> jobs_of(
    const DataSet& data,
    const std::vector<std::string>& paths,
    bool validate);
