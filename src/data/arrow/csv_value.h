// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/csv_source.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// Whether a field of a number column stands for a missing number.
bool is_missing_number(
    std::string_view field,
    const std::vector<std::string>& missing_values);

/// Parses an integer, "true" or "false", with spaces around it. Returns false if the text
/// is not an integer above -2^63 and below 2^63.
bool parse_csv_integer(std::string_view field, int64_t& value);

/// Parses an unsigned integer of 64 bits as the int64 with the same bits. Returns false for
/// another text, and for 2^63, whose bits stand for a missing integer.
bool parse_csv_bits(std::string_view field, int64_t& value);

/// Parses a number or a boolean, with spaces around it. Returns false if the text is no
/// number, or a finite one that is too large for float32.
bool parse_csv_float(std::string_view field, float& value);

/// Whether the text has only digits, with an optional sign.
bool has_only_digits(std::string_view field);

}  // namespace tessera::data
