// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/dataset.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::data {

namespace detail {

/// The options of collect_sequences().
struct CollectOptions {
  /// The column whose equal values belong together, such as the user or the session: one
  /// integer or text per example. A missing value is an error.
  std::string by = {};
  /// The column with the time, one integer or float per example. A missing time is an
  /// error. So is a finite float with an absolute value of 2^24 or more, because float32
  /// rounds it.
  std::string time = {};
  /// The columns to collect, in this order. If empty, all columns but `by`.
  std::vector<std::string> values = {};
  /// Shorter sequences are left out, >= 1.
  int64_t min_length = 1;
  /// Only the latest examples of a longer sequence are kept, >= 1. If unset, all are.
  std::optional<int64_t> max_length = {};

  bool operator==(const CollectOptions&) const = default;
};

}  // namespace detail

// snippet: tests/docs/reference_dataset_test.cpp collect_sequences
/// Makes a sequence of each user, or of each session, from a log with a line for each
/// event:
///
///   const Columns histories = collect_sequences(
///       clicks, {.by = "user", .time = "time", .values = {"item"}});
///   const Dataset users(histories);
///
/// The result has an example for each value of `by`. The examples are sorted by this
/// value in ascending order, and text is sorted by its bytes. The column `by` has one
/// value for each example, and the others have lists in the order of time. Events with
/// equal times have the order of the dataset.
///
/// Reads epoch 0 of the dataset once.
/// Memory:  two copies of the columns `by` and `values`, and 24 to 40 bytes for each
///          example.
/// Errors:  c10::ValueError for a dataset without examples, for columns that are missing,
///          named twice or have lists, for missing values of `by` and `time`, and for
///          lengths out of range; c10::TypeError for a column of another kind. Errors of
///          the source are passed on.
Columns collect_sequences(
    const Dataset& examples,
    const detail::CollectOptions& options);

}  // namespace tessera::data
