// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::data {

/// The number of bytes that find_binary_format() needs at most.
inline constexpr size_t kTextBeginBytes = 265;

/// A format that is often mistaken for another one.
struct BinaryFormat {
  std::string_view bytes = {};  // which the files have at `offset`
  const char* name = "";  // such as "a zip file"
  const char* advice = "";
  size_t offset = 0;
};

/// The first kTextBeginBytes of a file, or fewer if it can't be read.
std::string begin_of_file(const std::string& path);

/// The format of a file that begins with these bytes, or nullptr if it may be text.
const BinaryFormat* find_binary_format(std::string_view begin);

/// Checks that a file, or what it unpacks to, does not begin like a binary format.
/// Errors:  c10::ValueError that begins with `where`, and says what the file is.
void check_text_begin(
    std::string_view begin,
    bool is_unpacked,
    const std::string& where);

/// Returns whether these are the first bytes of a gzip file.
bool begins_gzip(std::string_view begin);
/// Returns whether these are the first bytes of a zstd file.
bool begins_zstd(std::string_view begin);

}  // namespace tessera::data
