// SPDX-License-Identifier: Apache-2.0
#include "src/data/arrow/csv_value.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace tessera::data {

namespace {

std::string_view without_spaces(std::string_view field) {
  while (!field.empty() && (field.front() == ' ' || field.front() == '\t')) {
    field.remove_prefix(1);
  }
  while (!field.empty() && (field.back() == ' ' || field.back() == '\t')) {
    field.remove_suffix(1);
  }
  return field;
}

// std::from_chars takes no plus sign.
std::string_view without_plus(std::string_view field) {
  const bool is_signed_twice = field.size() > 1 && field[1] == '-';
  return field.starts_with('+') && !is_signed_twice ? field.substr(1) : field;
}

template <class Value>
bool parse_boolean(std::string_view field, Value& value) {
  if (field == "true" || field == "True" || field == "TRUE") {
    value = 1;
    return true;
  }
  if (field == "false" || field == "False" || field == "FALSE") {
    value = 0;
    return true;
  }
  return false;
}

template <class Value>
bool parse_number(std::string_view field, Value& value) {
  field = without_plus(without_spaces(field));
  const char* end = field.data() + field.size();
  const auto result = std::from_chars(field.data(), end, value);
  return (result.ec == std::errc() && result.ptr == end) ||
      parse_boolean(field, value);
}

}  // namespace

bool is_missing_number(
    std::string_view field,
    const std::vector<std::string>& missing_values) {
  return std::find(missing_values.begin(), missing_values.end(), field) !=
      missing_values.end();
}

bool parse_csv_integer(std::string_view field, int64_t& value) {
  return parse_number(field, value) && value != kMissing;
}

bool parse_csv_bits(std::string_view field, int64_t& value) {
  uint64_t number = 0;
  if (!parse_number(field, number)) {
    return false;
  }
  value = static_cast<int64_t>(number);
  return value != kMissing;
}

bool parse_csv_float(std::string_view field, float& value) {
  if (parse_number(field, value)) {
    return true;
  }
  // A number that is too small for float32 is 0 or denormal.
  field = without_plus(without_spaces(field));
  double precise = 0;
  const char* end = field.data() + field.size();
  const auto result = std::from_chars(field.data(), end, precise);
  const bool is_small = precise > -1 && precise < 1;
  if (result.ec != std::errc() || result.ptr != end || !is_small) {
    return false;
  }
  value = static_cast<float>(precise);
  return true;
}

bool has_only_digits(std::string_view field) {
  field = without_spaces(field);
  if (field.starts_with('-') || field.starts_with('+')) {
    field.remove_prefix(1);
  }
  return !field.empty() && std::all_of(field.begin(), field.end(), [](char c) {
    return c >= '0' && c <= '9';
  });
}

}  // namespace tessera::data
