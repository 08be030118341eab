// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/random_key.h"

#include <cstdint>

namespace tessera::data {

/// Random numbers that are the same on every machine: splitmix64.
class RandomStream {
 public:
  /// Streams with different arguments are unrelated.
  RandomStream(uint64_t seed, uint64_t first, uint64_t second)
      : state_(mix(mix(mix(0, seed), first), second)) {}

  uint64_t next() {
    state_ += kStep;
    return mix_bits(state_);
  }

  /// A number in [0, bound), each with the same probability. bound >= 1.
  /// Source:  Lemire 2019, Fast random integer generation in an interval.
  int64_t below(int64_t bound) {
    const auto range = static_cast<uint64_t>(bound);
    Wide product = static_cast<Wide>(next()) * range;
    if (static_cast<uint64_t>(product) < range) {
      const uint64_t threshold = (0 - range) % range;
      while (static_cast<uint64_t>(product) < threshold) {
        product = static_cast<Wide>(next()) * range;
      }
    }
    return static_cast<int64_t>(product >> 64);
  }

  /// A number in [0, 1), a multiple of 2^-53.
  double uniform() {
    return static_cast<double>(next() >> 11) * 0x1p-53;
  }

 private:
  __extension__ using Wide = unsigned __int128;

  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15ULL;

  static uint64_t mix(uint64_t key, uint64_t value) {
    return mix_bits((key ^ mix_bits(value + kStep)) + kStep);
  }

  uint64_t state_;
};

}  // namespace tessera::data
