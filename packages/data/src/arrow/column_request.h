// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>

#include <map>
#include <ranges>
#include <string>
#include <vector>

namespace tessera::data {

/// How the numbers of a column in a text file are written. In every style except kAny,
/// there is only one text for each value.
struct NumberStyle {
  enum class Kind {
    /// Any spelling. The user has set the type.
    kAny,
    /// 7 and -12.
    kInteger,
    /// true and false, True and False, or TRUE and FALSE.
    kBoolean,
    /// 2, 0.5 and 1e-05.
    kShortest,
    /// 2.0, 0.5 and 1e-05, as Python writes them.
    kShortestWithPoint,
    /// A fixed number of digits after the point, such as 2.50.
    kFixed,
    /// A fixed number of digits after the point, such as 2.50e-01.
    kScientific
  };

  Kind kind = Kind::kAny;
  /// The digits after the point of kFixed and kScientific, or the spelling of kBoolean.
  int detail = 0;

  bool operator==(const NumberStyle&) const = default;
};

/// A column that is read from each file.
struct ColumnRequest {
  std::string name = {};
  ColumnType type = ColumnType::kInt64;
  NumberStyle style = {};  // only in a CSV whose types are inferred
  char list_delimiter = '\0';  // only in a CSV with lists
  std::string unit = {};  // of times, from unit_of()
  bool has_unknown_unit = false;  // the first file has only nulls
};

std::vector<std::string> names_of(const std::vector<ColumnRequest>& requests);

/// Returns the positions of the requested columns in a file, whose columns are `names`.
/// Errors:  c10::ValueError that begins with `where`, for a requested column that the
///          file has twice or not at all. For a missing column, the message lists similar
///          names, or else all names, and ends with `advice`.
std::vector<int> find_columns(
    const std::string& where,
    const std::vector<std::string>& names,
    const std::vector<std::string>& requested,
    const char* advice = "Correct the name.");

/// Returns the columns of `option`, or all `names` if it is empty.
/// Errors:  c10::ValueError for a column that is requested twice, and for more columns
///          than a reader can handle.
std::vector<std::string> requested_columns(
    const std::string& where,
    const std::vector<std::string>& option,
    const std::vector<std::string>& names);

/// Errors:  c10::ValueError if the `option` has a column that is not requested.
void check_keys(
    const std::string& where,
    const char* option,
    const std::vector<std::string>& keys,
    const std::vector<std::string>& requested);

template <class Value>
void check_keys(
    const std::string& where,
    const char* option,
    const std::map<std::string, Value>& values,
    const std::vector<std::string>& requested) {
  const auto keys = std::views::keys(values);
  check_keys(where, option, {keys.begin(), keys.end()}, requested);
}

}  // namespace tessera::data
