// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/dataset.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::data {

/// The parts of a split. Each example is in exactly one of them, and each part keeps the
/// order that the examples had before the split. A part may be empty.
struct DatasetSplit {
  Dataset train;
  Dataset validation;
  Dataset test;
};

/// Assigns each example at random, by a hash of its number and the seed. An example keeps
/// its part when examples are appended.
struct SplitByShare {
  /// The probability that an example is in `test`, in (0, 1).
  double test = 0.0;
  /// The probability that an example is in `validation`, in [0, 1). test + validation is
  /// < 1.
  double validation = 0.0;
  int64_t seed = 0;

  bool operator==(const SplitByShare&) const = default;
};

/// Puts the newest examples into `test`, and those before them into `validation`. Set
/// either the shares or the times.
struct SplitByTime {
  /// The column with the time, one integer or float per example. A missing time is an
  /// error. So is a finite float with an absolute value of 2^24 or more, because float32
  /// rounds it.
  std::string column = {};
  /// The share of all examples that is in `test`, in (0, 1): the newest ones. Of two
  /// examples with the same time, the one that comes later in the dataset is newer.
  double test = 0.0;
  /// The share of all examples that is in `validation`, in [0, 1): the newest ones before
  /// those in `test`. test + validation is < 1.
  double validation = 0.0;
  /// Examples with a time >= test_from are in `test`. Pass an int64_t or a double. Both
  /// are exact in long double, such as the nanosecond 1700000000000000001.
  std::optional<long double> test_from = {};
  /// Other examples with a time >= validation_from are in `validation`.
  std::optional<long double> validation_from = {};

  bool operator==(const SplitByTime&) const = default;
};

/// Puts all examples of a user into the same part, by a hash of the user and the seed.
struct SplitByUser {
  /// The column with the user, one integer or text per example. A missing user is an
  /// error.
  std::string column = {};
  /// The probability that a user is in `test`, in (0, 1).
  double test = 0.0;
  /// The probability that a user is in `validation`, in [0, 1). test + validation is < 1.
  double validation = 0.0;
  int64_t seed = 0;

  bool operator==(const SplitByUser&) const = default;
};

/// Puts the newest example of each user into `test`, and the one before it into
/// `validation`. Of two examples with the same time, the one that comes later in the
/// dataset is newer.
struct LeaveOneOut {
  /// The column with the user, one integer or text per example. A missing user is an
  /// error.
  std::string user = {};
  /// The column with the time, one integer or float per example. A missing time is an
  /// error. So is a finite float with an absolute value of 2^24 or more, because float32
  /// rounds it.
  std::string time = {};
  /// A user with fewer examples than this has all of them in `train`. It is an error if
  /// all users have fewer. >= 3.
  int64_t min_examples = 3;

  bool operator==(const LeaveOneOut&) const = default;
};

// snippet: tests/docs/reference_dataset_test.cpp split
/// Splits the examples:
///
///   const DatasetSplit by_share = split(ratings, SplitByShare{.test = 0.2});
///   const DatasetSplit by_user =
///       split(ratings, SplitByUser{.column = "user", .test = 0.2});
///   const DatasetSplit by_time = split(
///       ratings, SplitByTime{.column = "time", .test = 0.1, .validation = 0.1});
///   const DatasetSplit last_of_each_user =
///       split(ratings, LeaveOneOut{.user = "user", .time = "time"});
///
/// Reads all examples once, except with SplitByShare if the dataset knows its size. Keeps
/// one byte for each example. Therefore, the parts know their sizes. Split before
/// shuffle(), so that the parts are the same in each epoch.
/// Errors:  c10::ValueError for shares and times out of range; if the order of the
///          examples changes with the epoch; for a column that is missing, or has lists
///          or missing values; if LeaveOneOut leaves nothing out. c10::TypeError for a
///          column of another kind. Errors of the source are passed on.
DatasetSplit split(const Dataset& dataset, const SplitByShare& by);
DatasetSplit split(const Dataset& dataset, const SplitByTime& by);
DatasetSplit split(const Dataset& dataset, const SplitByUser& by);
DatasetSplit split(const Dataset& dataset, const LeaveOneOut& by);

}  // namespace tessera::data
