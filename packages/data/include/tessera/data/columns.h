// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::data {

// snippet: tests/docs/reference_data_test.cpp Column
/// One column of a batch of examples.
///
///   const Column ages{.values = torch::tensor({31.0F, 18.0F})};
///   // The tags of two examples: "new" and "red", and "red".
///   const Column tags{
///       .values = std::vector<std::string>{"new", "red", "red"},
///       .row_splits = torch::tensor({0, 2, 3})};
struct Column {
  /// int64 or float32 [batch], or text. With row_splits, the values of all examples one
  /// after the other.
  std::variant<at::Tensor, std::vector<std::string>> values = {};
  /// If undefined, each example has one value. Otherwise int64 [batch + 1], and example i
  /// has the values [row_splits[i], row_splits[i + 1]).
  at::Tensor row_splits = {};
};

/// Checks that a tensor of values is int64 or float32 [n] on the CPU, and that row_splits
/// ascend from 0 to n.
/// Errors:  c10::ValueError or c10::TypeError naming the column.
void validate(const Column& column, std::string_view name);

/// The number of examples in a column that has passed validate().
int64_t batch_size(const Column& column);

// snippet: tests/docs/reference_data_test.cpp Columns
/// The columns of a batch of examples, with their names, in the order of add().
///
///   Columns columns;
///   columns.add("age", {.values = torch::tensor({31.0F, 18.0F})});
///   columns.add("site", {.values = std::vector<std::string>{"a.org", "b.org"}});
///   const Column& ages = columns.at("age");
class Columns {
 public:
  using Entry = std::pair<std::string, Column>;

  /// Errors:  from validate(); c10::ValueError if a column of this name exists, or if
  ///          the number of examples differs from that of the other columns.
  void add(std::string name, Column column);

  bool contains(std::string_view name) const;
  /// Errors:  c10::ValueError naming the column and listing the existing ones.
  const Column& at(std::string_view name) const&;
  Column at(std::string_view name) &&;
  /// The values of a column of numbers with one value per example, [batch].
  /// Errors:  as at(); c10::TypeError for text and lists.
  at::Tensor tensor(std::string_view name) const;

  /// The number of examples. 0 if there are no columns.
  int64_t batch_size() const;
  const std::vector<Entry>& entries() const& {
    return entries_;
  }
  std::vector<Entry> entries() && {
    return std::move(entries_);
  }

 private:
  std::vector<Entry> entries_;
};

/// A column with a list of `dim` floats for each row, such as the rows of a table.
/// Shapes:  rows [n, dim], of any floating-point type.
/// Errors:  c10::ValueError or c10::TypeError for another tensor.
Column vector_column(const at::Tensor& rows);

/// A table with the names, types and values of the first examples. Missing values are
/// "(missing)", and lists are in brackets.
///
///   user  items   price
///   text  [text]  float32
///   u1    [a,b]   9.5
///   2 more examples
std::string to_string(const Columns& columns, int64_t max_examples = 20);

/// Writes to_string(columns).
std::ostream& operator<<(std::ostream& stream, const Columns& columns);

}  // namespace tessera::data
