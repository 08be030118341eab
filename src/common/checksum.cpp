// SPDX-License-Identifier: Apache-2.0
#include "src/common/checksum.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {

struct Checksum::State {
  XXH3_state_t xxh3;
};

std::string checksum_of(std::string_view bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
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
