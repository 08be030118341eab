// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <vector>

namespace tessera {

/// The best k candidates of which at most `max_per_value` have the same value. A candidate
/// is left out if that many better ones have its value. `ranked(count)` returns the best
/// `count` candidates as a std::vector, best first, or all if there are fewer. `value_of(
/// candidate)` returns an optional; candidates without a value are not limited.
template <class Ranked, class ValueOf>
auto choose_diverse(
    int64_t k,
    int64_t max_per_value,
    Ranked ranked,
    ValueOf value_of) {
  // Many candidates may be left out, so the search continues until enough are found.
  for (int64_t count = 4 * k;; count *= 4) {
    auto candidates = ranked(count);
    const bool are_all = std::ssize(candidates) < count;
    std::unordered_map<int64_t, int64_t> num_chosen;
    decltype(candidates) chosen;
    for (const auto& candidate : candidates) {
      const auto value = value_of(candidate);
      if (std::ssize(chosen) < k &&
          (!value || ++num_chosen[*value] <= max_per_value)) {
        chosen.push_back(candidate);
      }
    }
    if (are_all || std::ssize(chosen) == k) {
      return chosen;
    }
  }
}

}  // namespace tessera
