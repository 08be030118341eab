// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::data {

/// The number of bytes that check_text_begin() needs at most.
inline constexpr size_t kTextBeginBytes = 8;

/// Checks that a file, or what it unpacks to, does not begin like another format that is
/// often mistaken for text.
/// Errors:  c10::ValueError that begins with `where`, and says what the file is.
void check_text_begin(
    std::string_view begin,
    bool is_unpacked,
    const std::string& where);

/// Whether these are the first bytes of a gzip file.
bool begins_gzip(std::string_view begin);
/// Whether these are the first bytes of a zstd file.
bool begins_zstd(std::string_view begin);

}  // namespace tessera::data
