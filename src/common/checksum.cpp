// SPDX-License-Identifier: Apache-2.0
#include "src/common/checksum.h"

#include "src/common/check.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace tessera {

namespace {

constexpr std::string_view kBeforeDigits = "\nxxh3 ";
constexpr size_t kEndingBytes = kBeforeDigits.size() + kChecksumDigits + 1;

}  // namespace

struct Checksum::State {
  XXH3_state_t xxh3;
};

std::string checksum_of(std::string_view bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

std::string checksum_ending(const std::string& digits) {
  return fmt::format("{}{}\n", kBeforeDigits, digits);
}

bool take_checksum_ending(std::string_view& file) {
  const std::string_view ending =
      file.substr(file.size() - std::min(file.size(), kEndingBytes));
  if (!ending.starts_with(kBeforeDigits)) {
    return false;
  }
  file.remove_suffix(kEndingBytes);
  TESSERA_CHECK_VALUE(
      ending == checksum_ending(checksum_of(file)),
      "its {} bytes do not match the checksum at their end",
      file.size());
  return true;
}

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}

Checksum::~Checksum() = default;

void Checksum::add(const void* data, size_t size) {
  XXH3_64bits_update(&state_->xxh3, data, size);
}

std::string Checksum::digits() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(&state_->xxh3));
}

}  // namespace tessera
