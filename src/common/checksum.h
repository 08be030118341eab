// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

/// The number of hexadecimal digits of a checksum.
inline constexpr size_t kChecksumDigits = 16;

/// The XXH3 checksum of some bytes, as 16 hexadecimal digits.
std::string checksum_of(std::string_view bytes);

// A file of an archive ends with a checksum of all bytes before it. LibTorch's own reader
// ignores what follows the archive.

/// The last bytes of a file. `digits` are the checksum of all bytes before them.
std::string checksum_ending(const std::string& digits);

/// Removes the ending from the bytes of a file. Returns false if there is none, as in
/// files of other programs.
/// Errors:  c10::ValueError if the bytes do not agree with the checksum.
bool take_checksum_ending(std::string_view& file);

/// Computes checksum_of() for bytes that are added in parts.
class Checksum {
 public:
  Checksum();
  ~Checksum();

  void add(const void* data, size_t size);
  void add(std::string_view bytes) {
    add(bytes.data(), bytes.size());
  }
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
