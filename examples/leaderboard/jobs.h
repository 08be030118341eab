// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/leaderboard/data_sets.h"
#include "examples/leaderboard/results.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

/// A model, or a simple method, on a data set.
struct Job {
  std::string model = {};
  tessera::Json settings = tessera::Json::object();
  /// False for a method without random numbers, which runs once.
  bool has_seeds = true;
  /// Trains with the seed, and fills what the result has besides the names, seed, settings
  /// and machine. Returns 0, or the signal that stopped the training.
  std::function<int(int64_t seed, Result& result)> run = {};
};

/// How jobs differ from those of docs/quality.md.
struct JobOptions {
  std::string data = {};  // the name of the data set, for messages
  /// For Gowalla and ML-100K, a part of the training data takes the place of the test data,
  /// to choose settings. The other data sets have items for validation in any case.
  bool validate = false;
  /// Names and values of settings that replace those of the job. A value is JSON, or the
  /// text of a setting that is one.
  std::map<std::string, std::string> set = {};
};

/// The jobs on a data set. Its files are read by the first job that runs. The path of
/// ML-100K is the folder of MovieLens 100K.
/// Errors:  c10::ValueError for a setting that the model does not have.
std::vector<Job> jobs_of(
    const DataSet& data,
    const std::vector<std::string>& paths,
    const JobOptions& job_options);
