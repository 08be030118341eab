// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// The result of one training of a model, or of a simple method, on a data set.
struct Result {
  std::string data = {};
  std::string model = {};
  int64_t seed = 0;
  /// The settings that may be chosen, such as the learning rate. A result with others is
  /// a try, which stays in the file but not in the tables.
  tessera::Json settings = tessera::Json::object();
  /// Names and values on the test items.
  std::vector<std::pair<std::string, double>> metrics = {};
  /// Their standard errors over the users, or nothing.
  std::vector<std::pair<std::string, double>> standard_errors = {};
  /// The value by which the epoch and the settings were chosen, on validation items; 0 if
  /// nothing was chosen.
  double validation = 0.0;
  int64_t epochs = 0;
  int64_t best_epoch = 0;  // counted from 1
  double train_seconds = 0.0;  // of the training steps
  double evaluation_seconds = 0.0;  // for the ranks of all test items
  int64_t peak_mebibytes =
      0;  // of memory, in all of this; 0 if it was not measured
  /// For methods that try a list of settings themselves: the chosen one, all of them with
  /// their validation values, and the time that this took.
  tessera::Json chosen = tessera::Json::object();
  tessera::Json tries = tessera::Json::array();
  double choice_seconds = 0.0;
  std::string machine = {};  // processor, number of threads
  /// The validation value after each epoch, and the seconds of training up to it.
  std::vector<double> curve = {};
  std::vector<double> curve_seconds = {};
  /// The first 20 items of each tested user, as the data numbers them. Not in the file of
  /// results.
  std::vector<std::vector<int64_t>> lists = {};
};

/// The processor, the instruction set and the number of threads of this program.
std::string machine_name();

/// The results of earlier calls and of this one: a JSON list in a file.
class ResultFile {
 public:
  /// Reads the file, if it exists.
  /// Errors:  c10::ValueError naming the file if it has other contents.
  explicit ResultFile(std::string path);

  /// The result with the data, model, seed and settings of `key`, or nullptr.
  const Result* find(const Result& key) const;
  /// Adds the result, in place of one with the same names, seed and settings, and writes
  /// the file anew: it appears completely or not at all.
  /// Errors:  c10::Error if the file can't be written.
  void add(Result result);

  const std::vector<Result>& results() const {
    return results_;
  }

 private:
  std::string path_;
  std::vector<Result> results_;
};

/// The results as a JSON list with one result per line.
std::string json_text_of(const std::vector<Result>& results);
