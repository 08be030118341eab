// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/arrow/csv_value.h"

#include "packages/data/src/reader_checks.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

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

// The spellings of true and false.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3>
    kBooleans{{{"true", "false"}, {"True", "False"}, {"TRUE", "FALSE"}}};

template <class Value>
bool parse_boolean(std::string_view field, Value& value) {
  for (const auto& [yes, no] : kBooleans) {
    if (field == yes || field == no) {
      value = field == yes ? 1 : 0;
      return true;
    }
  }
  return false;
}

template <class Value>
bool parse_number(std::string_view field, Value& value) {
  field = without_plus(without_spaces(field));
  if constexpr (std::is_same_v<Value, float>) {
    return parse_float(field, value) || parse_boolean(field, value);
  }
  return parse_whole(field, value) || parse_boolean(field, value);
}

using FloatText = std::array<char, 512>;

// Writes a number that is not NaN. The buffer holds any float32 with kMaxDecimals.
std::string_view write_in_style(
    float value,
    const NumberStyle& style,
    FloatText& buffer) {
  using enum NumberStyle::Kind;
  char* begin = buffer.data();
  char* end = begin + buffer.size();
  if (style.kind == kFixed || style.kind == kScientific) {
    const auto format = style.kind == kFixed ? std::chars_format::fixed
                                             : std::chars_format::scientific;
    end = std::to_chars(begin, end, value, format, style.detail).ptr;
    return {begin, end};
  }
  // Python writes numbers outside this range with an exponent.
  const float size = std::abs(value);
  const bool is_plain = size == 0 || (size >= 1e-4F && size < 1e16F);
  end = std::to_chars(
            begin,
            end,
            value,
            is_plain ? std::chars_format::fixed : std::chars_format::scientific)
            .ptr;
  if (style.kind == kShortestWithPoint && is_plain &&
      std::find(begin, end, '.') == end) {
    *end++ = '.';
    *end++ = '0';
  }
  return {begin, end};
}

bool is_integer(const NumberStyle& style) {
  return style.kind == NumberStyle::Kind::kInteger ||
      style.kind == NumberStyle::Kind::kBoolean;
}

// The styles that a column with this first value may have, the preferred ones first. If
// several fit all values of a sample, the first one is the most probable.
std::vector<NumberStyle> styles_for(std::string_view value) {
  using enum NumberStyle::Kind;
  constexpr size_t kMaxDecimals = 100;
  std::vector<NumberStyle> styles{{.kind = kInteger}};
  for (size_t i = 0; i < kBooleans.size(); ++i) {
    styles.push_back({.kind = kBoolean, .detail = static_cast<int>(i)});
  }
  styles.push_back({.kind = kShortestWithPoint});
  styles.push_back({.kind = kShortest});
  const size_t exponent = std::min(value.find('e'), value.size());
  const size_t point = value.find('.');
  const size_t decimals = point < exponent ? exponent - point - 1 : 0;
  const bool is_scientific = exponent < value.size();
  // A kFixed style without digits after the point would be kInteger.
  if (decimals <= kMaxDecimals && (decimals > 0 || is_scientific)) {
    styles.push_back(
        {.kind = is_scientific ? kScientific : kFixed,
         .detail = static_cast<int>(decimals)});
  }
  return styles;
}

}  // namespace

bool is_missing_number(
    std::string_view field,
    const std::vector<std::string>& missing_values) {
  return std::ranges::find(missing_values, field) != missing_values.end();
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
  return parse_number(field, value);
}

bool is_any_number(std::string_view field) {
  int64_t integer = 0;
  float number = 0;
  return parse_csv_integer(field, integer) ||
      (parse_csv_float(field, number) && !std::isnan(number));
}

bool parse_in_style(
    std::string_view field,
    const NumberStyle& style,
    int64_t& value) {
  if (style.kind == NumberStyle::Kind::kBoolean) {
    const auto& [yes, no] = kBooleans[style.detail];
    value = field == yes ? 1 : 0;
    return field == yes || field == no;
  }
  const std::string_view digits = field.substr(field.starts_with('-') ? 1 : 0);
  return parse_whole(field, value) && value != kMissing &&
      (digits.front() != '0' || field == "0");
}

bool parse_in_style(
    std::string_view field,
    const NumberStyle& style,
    float& value) {
  if (!parse_whole(field, value) || std::isnan(value) ||
      (value == 0 && field.starts_with('-'))) {
    return false;
  }
  // In each style, a value is written in only one way. If that is this text, no other
  // text has the same value.
  FloatText buffer;
  return write_in_style(value, style, buffer) == field;
}

std::string describe(const NumberStyle& style) {
  using enum NumberStyle::Kind;
  switch (style.kind) {
    case kAny:
      break;
    case kInteger:
      return "an integer such as 7 or -12";
    case kBoolean: {
      const auto& [yes, no] = kBooleans[style.detail];
      return c10::str(yes, " or ", no);
    }
    case kShortest:
      return "a number such as 2, 0.5 or 1e-05 without more digits than float32 needs";
    case kShortestWithPoint:
      return "a number such as 2.0, 0.5 or 1e-05 without more digits than float32 needs";
    case kFixed:
    case kScientific:
      return fmt::format(
          "a number {}with {} {} after the point that float32 does not round",
          style.kind == kFixed ? "" : "such as 2e-01 ",
          style.detail,
          style.detail == 1 ? "digit" : "digits");
  }
  return "a number";
}

void TypeInference::add(std::string_view value) {
  const bool was_text = has_values_ && styles_.empty();
  if (was_text && ambiguous_number_.empty()) {
    return;
  }
  if (!has_values_) {
    has_values_ = true;
    styles_ = styles_for(value);
  }
  const auto fits = [&](const NumberStyle& style) {
    int64_t integer = 0;
    float number = 0;
    return is_integer(style) ? parse_in_style(value, style, integer)
                             : parse_in_style(value, style, number);
  };
  std::erase_if(
      styles_, [&](const NumberStyle& style) { return !fits(style); });
  if (styles_.empty()) {
    if (!is_any_number(value)) {
      ambiguous_number_.clear();
    } else if (!was_text) {
      ambiguous_number_ = value;
    }
  }
}

ColumnType TypeInference::type() const {
  return styles_.empty()            ? ColumnType::kText
      : is_integer(styles_.front()) ? ColumnType::kInt64
                                    : ColumnType::kFloat32;
}

NumberStyle TypeInference::style() const {
  return styles_.empty() ? NumberStyle{} : styles_.front();
}

}  // namespace tessera::data
