// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

namespace detail {

inline constexpr int kNodesPerUnit = 8;
inline constexpr int kEnd = 64;  // log2(1 + 2^-kEnd) is below 1e-19
inline constexpr size_t kTerms = 8;

// The Taylor series of log2(1 + 2^-x) around a node. The distance from the nearest node is
// at most 1/16, so the first term that is left out is below 1e-15.
using Series = std::array<double, kTerms>;

inline Series series_at(double node) {
  // With f(t) = ln(1 + e(t)) and e(t) = 2^-(node + t), (1 + e) f' = e'. This gives each
  // coefficient from those before.
  const double ln2 = std::log(2.0);
  Series e{std::exp2(-node)};
  Series f{std::log1p(e[0])};
  for (size_t k = 1; k < kTerms; ++k) {
    e[k] = -e[k - 1] * ln2 / static_cast<double>(k);
    double sum = static_cast<double>(k) * e[k];
    for (size_t j = 1; j < k; ++j) {
      sum -= static_cast<double>(j) * f[j] * e[k - j];
    }
    f[k] = sum / (static_cast<double>(k) * (1.0 + e[0]));
  }
  for (double& coefficient : f) {
    coefficient /= ln2;
  }
  return f;
}

inline std::vector<Series> all_series() {
  std::vector<Series> all;
  for (int i = 0; i <= kEnd * kNodesPerUnit; ++i) {
    all.push_back(series_at(static_cast<double>(i) / kNodesPerUnit));
  }
  return all;
}

}  // namespace detail

/// log2(2^a + 2^b), with an error below 1e-15 plus that of a rounding to double.
inline double log2_of_sum(double a, double b) {
  // std::exp2() and std::log2() took 2.4 times as long.
  static const std::vector<detail::Series> all = detail::all_series();
  const double larger = std::max(a, b);
  const double difference = larger - std::min(a, b);
  if (!(difference < detail::kEnd)) {
    return larger;
  }
  const int node = static_cast<int>(difference * detail::kNodesPerUnit + 0.5);
  const double t =
      difference - static_cast<double>(node) / detail::kNodesPerUnit;
  const detail::Series& series = all[static_cast<size_t>(node)];
  // Half of the terms each, so that the additions of one don't wait for the other.
  const double square = t * t;
  double even = series[6];
  double odd = series[7];
  for (size_t k = 4; k < detail::kTerms; k -= 2) {
    even = even * square + series[k];
    odd = odd * square + series[k + 1];
  }
  return larger + (even + odd * t);
}

/// log2(count), for count >= 1.
inline double log2_of_count(uint32_t count) {
  static const std::array<double, 256> small = [] {
    std::array<double, 256> values{};
    for (size_t i = 1; i < values.size(); ++i) {
      values[i] = std::log2(static_cast<double>(i));
    }
    return values;
  }();
  return count < small.size() ? small[count]
                              : std::log2(static_cast<double>(count));
}

}  // namespace tessera
