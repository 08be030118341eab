// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/criteo_line.h"

#include <tessera/data/criteo_reader.h>

#include "packages/data/src/reader_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace tessera::data {

namespace {

static_assert(std::endian::native == std::endian::little);

// The functions below handle eight characters at a time, in the bytes of one integer.
constexpr uint64_t kOnes = 0x0101010101010101;
constexpr uint64_t kHighBits = 0x80 * kOnes;

uint64_t load(const char* text) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, text, sizeof(bytes));
  return bytes;
}

// Sets the high bit of each byte that is >= limit. All bytes must be below 128.
constexpr uint64_t at_least(uint64_t bytes, uint64_t limit) {
  return bytes + (0x80 - limit) * kOnes;
}

bool parse_eight_digits(uint64_t text, int64_t& value) {
  const uint64_t letters = text | 0x20 * kOnes;
  const uint64_t is_digit = at_least(text, '0') & ~at_least(text, '9' + 1);
  const uint64_t is_letter =
      at_least(letters, 'a') & ~at_least(letters, 'f' + 1);
  if (((is_digit | is_letter) & kHighBits) != kHighBits ||
      (text & kHighBits) != 0) {
    return false;
  }
  uint64_t digits = (text & 0x0f * kOnes) + 9 * (text >> 6 & kOnes);
  digits = (digits << 4 | digits >> 8) & 0x00ff00ff00ff00ff;
  digits = (digits << 8 | digits >> 16) & 0x0000ffff0000ffff;
  value = static_cast<int64_t>((digits << 16 | digits >> 32) & 0xffffffff);
  return true;
}

// Converts eight digits, with the first one in the lowest byte. Unused leading digits
// must be 0. The first step joins digits to pairs, and the second joins the pairs.
int64_t join_decimal_digits(uint64_t digits) {
  constexpr uint64_t kPairs = 0x000000ff000000ff;
  digits = digits * 10 + (digits >> 8);
  return static_cast<int64_t>(
      ((digits & kPairs) * (100 + (1000000ULL << 32)) +
       (digits >> 16 & kPairs) * (1 + (10000ULL << 32))) >>
      32);
}

// Parses an integer of more than seven characters. Refuses -2^63, which is kMissing.
const char* parse_long_integer(const char* text, int64_t& value) {
  const bool is_negative = *text == '-';
  text += is_negative ? 1 : 0;
  const char* begin = text;
  int64_t number = 0;
  for (; *text >= '0' && *text <= '9'; ++text) {
    if (__builtin_mul_overflow(number, 10, &number) ||
        __builtin_add_overflow(number, *text - '0', &number)) {
      return nullptr;
    }
  }
  if (text == begin || *text != '\t') {
    return nullptr;
  }
  value = is_negative ? -number : number;
  return text + 1;
}

// Returns the position after the field's tab, or nullptr if the field is malformed.
const char* parse_integer(const char* text, int64_t& value) {
  uint64_t bytes = load(text);
  const uint64_t tabs = bytes ^ ('\t' * kOnes);
  // The lowest high bit that is set is the first tab.
  const uint64_t found = (tabs - kOnes) & ~tabs & kHighBits;
  if (found == 0) {
    return parse_long_integer(text, value);
  }
  int length = std::countr_zero(found) / 8;
  const char* after = text + length + 1;
  if (length == 0) {
    value = kMissing;
    return after;
  }
  const bool is_negative = *text == '-';
  if (is_negative) {
    bytes >>= 8;
    if (--length == 0) {
      return nullptr;
    }
  }
  const uint64_t digits = (bytes ^ ('0' * kOnes)) << (64 - 8 * length);
  if (((digits | at_least(digits, 10)) & kHighBits) != 0) {
    return nullptr;
  }
  const int64_t number = join_decimal_digits(digits);
  value = is_negative ? -number : number;
  return after;
}

int hexadecimal_digit(char c) {
  const char lower = static_cast<char>(c | 0x20);
  return c >= '0' && c <= '9'        ? c - '0'
      : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                     : -1;
}

// Returns the position after the digits, or nullptr if there are none or more than 8.
const char* parse_short_category(const char* text, int64_t& value) {
  value = 0;
  const char* begin = text;
  for (int digit = 0; (digit = hexadecimal_digit(*text)) >= 0; ++text) {
    if (text - begin == 8) {
      return nullptr;
    }
    value = value * 16 + digit;
  }
  return text == begin ? nullptr : text;
}

// Returns the position after the category's digits, or nullptr if it is malformed.
const char* parse_category(const char* text, char separator, int64_t& value) {
  if (*text == separator || *text == '\r') {
    value = kMissing;
    return text;
  }
  if (parse_eight_digits(load(text), value)) {
    return text + 8;
  }
  return parse_short_category(text, value);
}

bool is_integer(std::string_view field) {
  int64_t value = 0;
  return field.empty() || (parse_whole(field, value) && value != kMissing);
}

bool is_category(std::string_view field) {
  return field.size() <= 8 && std::ranges::all_of(field, [](char c) {
           return hexadecimal_digit(c) >= 0;
         });
}

}  // namespace

const char* parse_criteo_line(
    const char* line,
    int64_t row,
    const CriteoRows& rows) {
  if ((line[0] != '0' && line[0] != '1') || line[1] != '\t') {
    return nullptr;
  }
  rows.labels[row] = static_cast<float>(line[0] - '0');
  const char* text = line + 2;
  int64_t* value = rows.integers + row;
  for (int64_t i = 0; i < kCriteoIntegers; ++i, value += rows.stride) {
    text = parse_integer(text, *value);
    if (text == nullptr) {
      return nullptr;
    }
  }
  value = rows.categories + row;
  for (int64_t i = 1; i < kCriteoCategories; ++i, value += rows.stride) {
    text = parse_category(text, '\t', *value);
    if (text == nullptr || *text != '\t') {
      return nullptr;
    }
    ++text;
  }
  text = parse_category(text, '\n', *value);
  if (text == nullptr) {
    return nullptr;
  }
  text += *text == '\r' ? 1 : 0;
  return *text == '\n' ? text + 1 : nullptr;
}

std::string criteo_line_problem(std::string_view line, size_t max_line_bytes) {
  const std::string_view all = line;
  if (line.size() > max_line_bytes) {
    return fmt::format(
        "is longer than max_line_bytes = {}: {}",
        max_line_bytes,
        quote_text(all));
  }
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  std::vector<std::string_view> fields;
  for (size_t end = 0; end != std::string_view::npos;) {
    end = line.find('\t');
    fields.push_back(line.substr(0, end));
    line.remove_prefix(end == std::string_view::npos ? 0 : end + 1);
  }
  constexpr size_t kFields = 1 + kCriteoIntegers + kCriteoCategories;
  if (fields.size() != kFields) {
    return fmt::format(
        "expected {} fields separated by tabs, but got {}: {}",
        kFields,
        fields.size(),
        quote_text(all));
  }
  for (size_t i = 0; i < kFields; ++i) {
    const bool is_label = i == 0;
    const bool is_number = !is_label && i <= kCriteoIntegers;
    const bool is_valid = is_label ? fields[i] == "0" || fields[i] == "1"
        : is_number                ? is_integer(fields[i])
                                   : is_category(fields[i]);
    if (!is_valid) {
      return fmt::format(
          "field {} ({}) must be {}, but got {} in {}",
          i + 1,
          is_label        ? "label"
              : is_number ? fmt::format("I{}", i)
                          : fmt::format("C{}", i - kCriteoIntegers),
          is_label        ? "0 or 1"
              : is_number ? "an integer above -2^63 and below 2^63, or empty"
                          : "up to 8 hexadecimal digits, or empty",
          quote_text(fields[i]),
          quote_text(all));
    }
  }
  return {};
}

}  // namespace tessera::data
