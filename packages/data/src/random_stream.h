// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/random_key.h"

#include <algorithm>
#include <cstdint>
#include <vector>

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

/// Draws numbers with given weights in constant time.
/// Source:  Vose 1991, A linear algorithm for generating random numbers with a given
///          distribution.
class AliasTable {
 public:
  AliasTable() = default;

  /// The weights are finite and >= 0, with a finite sum > 0.
  explicit AliasTable(const std::vector<double>& weights);

  int64_t draw(RandomStream& random) const {
    const auto i = static_cast<size_t>(random.below(std::ssize(slots_)));
    return random.uniform() < slots_[i].probability ? static_cast<int64_t>(i)
                                                    : slots_[i].alias;
  }

 private:
  struct Slot {
    double probability = 1.0;  // of the slot's own number
    int64_t alias = 0;
  };

  std::vector<Slot> slots_;
};

inline AliasTable::AliasTable(const std::vector<double>& weights)
    : slots_(weights.size()) {
  double sum = 0.0;
  for (const double weight : weights) {
    sum += weight;
  }
  const auto size = static_cast<double>(weights.size());
  std::vector<double> shares;  // 1 on average
  std::vector<size_t> small;
  std::vector<size_t> large;
  for (size_t i = 0; i < weights.size(); ++i) {
    shares.push_back(weights[i] / sum * size);
    slots_[i].alias = static_cast<int64_t>(i);
    (shares[i] < 1.0 ? small : large).push_back(i);
  }
  while (!small.empty() && !large.empty()) {
    const size_t from = small.back();
    const size_t to = large.back();
    small.pop_back();
    slots_[from] = {shares[from], static_cast<int64_t>(to)};
    shares[to] -= 1.0 - shares[from];
    if (shares[to] < 1.0) {
      large.pop_back();
      small.push_back(to);
    }
  }
  // Rounding has left the shares of these numbers a little below 1. The number with the
  // largest weight gets the rest.
  const auto largest = std::ranges::max_element(weights) - weights.begin();
  for (const size_t i : small) {
    slots_[i] = {shares[i], largest};
  }
}

}  // namespace tessera::data
