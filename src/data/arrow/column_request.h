// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::data {

/// A column that is read from each file.
struct ColumnRequest {
  std::string name = {};
  ColumnType type = ColumnType::kInt64;
  char list_delimiter = '\0';  // only in a CSV with lists
  std::string unit = {};  // of times, from unit_of()
  bool has_unknown_unit = false;  // the first file has only nulls
};

/// The name of a type in messages.
const char* name_of(ColumnType type);

/// The positions of the requested columns in a file, whose columns have these names.
/// Errors:  c10::ValueError that begins with `where` for a missing column, with similar
///          names and the advice, and for a name that is there twice.
std::vector<int> find_columns(
    const std::string& where,
    const std::vector<std::string>& names,
    const std::vector<std::string>& requested,
    const char* advice = "Correct the name.");

/// Returns the columns of the option, or else all names.
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
  std::vector<std::string> keys;
  for (const auto& [key, value] : values) {
    keys.push_back(key);
  }
  check_keys(where, option, keys, requested);
}
/// Checks the number of threads, and replaces 0 by the default.
int64_t checked_threads(const std::string& reader, int64_t threads);

/// Errors:  c10::ValueError if the value is not in [low, high].
void check_option(
    const std::string& reader,
    const char* name,
    int64_t value,
    int64_t low,
    int64_t high);

}  // namespace tessera::data
