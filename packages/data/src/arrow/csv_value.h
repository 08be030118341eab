// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>

#include "packages/data/src/arrow/column_request.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// Returns whether a field of a number column stands for a missing number.
bool is_missing_number(
    std::string_view field,
    const std::vector<std::string>& missing_values);

/// Parses an integer, or a boolean such as "true" or "FALSE" as 1 or 0. Spaces around it
/// are allowed. Returns false for any other text, and for integers outside (-2^63, 2^63).
bool parse_csv_integer(std::string_view field, int64_t& value);

/// Parses an unsigned integer of 64 bits, or a boolean, as the int64 with the same
/// bits. Spaces around it are allowed. Returns false for any other text, and for 2^63,
/// whose bits stand for a missing integer.
bool parse_csv_bits(std::string_view field, int64_t& value);

/// Parses a number or a boolean. Spaces around it are allowed. Returns false for any
/// other text, and for a finite number that is too large for float32.
bool parse_csv_float(std::string_view field, float& value);

/// Returns whether the text is a number or a boolean in any spelling. NaN does not count.
bool is_any_number(std::string_view field);

/// Parses an integer or a boolean that is written in this style. Returns false for any
/// other text.
bool parse_in_style(
    std::string_view field,
    const NumberStyle& style,
    int64_t& value);

/// Parses a number that is written in this style. Returns false for any other text, and
/// if the float32 value, written in this style, gives another text.
bool parse_in_style(
    std::string_view field,
    const NumberStyle& style,
    float& value);

/// Returns a text for messages that describes the values of this style.
std::string describe(const NumberStyle& style);

/// Infers the type of a column from its values. All numbers must have one style, so that
/// no two different texts become one value. Otherwise, the type is kText.
class TypeInference {
 public:
  /// Adds a value that is not missing.
  void add(std::string_view value);

  bool has_values() const {
    return has_values_;
  }
  ColumnType type() const;
  /// The style of the numbers, or kAny for text.
  NumberStyle style() const;
  /// A value that shows why the column is text although all its values are numbers.
  /// Empty for all other columns.
  const std::string& ambiguous_number() const {
    return ambiguous_number_;
  }

 private:
  std::vector<NumberStyle>
      styles_;  // that fit all values, the preferred ones first
  std::string ambiguous_number_;
  bool has_values_ = false;
};

}  // namespace tessera::data
