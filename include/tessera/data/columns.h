// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::data {

/// A value that an integer column lacks. Float columns have NaN there, columns of
/// text the empty string.
inline constexpr int64_t kMissing = std::numeric_limits<int64_t>::min();

/// One column of a batch of examples, as a reader gives it.
struct Column {
  /// int64 or float32 [batch], or text; with row_splits, all examples' values in
  /// a row.
  std::variant<at::Tensor, std::vector<std::string>> values = {};
  /// Undefined: one value per example. Otherwise int64 [batch + 1], and example i
  /// has values [row_splits[i], row_splits[i + 1]).
  at::Tensor row_splits = {};
};

/// Refuses tensors that are not int64 or float32 [n] on the CPU, and row_splits
/// that don't ascend from 0 to n.
/// Errors:  c10::ValueError or c10::TypeError naming the column.
void validate(const Column& column, std::string_view name);

/// Examples of a column that has passed validate().
int64_t batch_size(const Column& column);

/// A batch of examples, column by column, by name and in order.
class Columns {
 public:
  using Entry = std::pair<std::string, Column>;

  /// Errors:  from validate(); c10::ValueError for a name that is there already,
  ///          or when the column has another number of examples than the others.
  void add(std::string name, Column column);

  bool contains(std::string_view name) const;
  /// Errors:  c10::ValueError naming the column and those that there are.
  const Column& at(std::string_view name) const;

  /// Examples; 0 without a column.
  int64_t batch_size() const;
  const std::vector<Entry>& entries() const {
    return entries_;
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace tessera::data
