// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>

#include <array>

/// Generated clicks whose ids have a long tail, with known click probabilities. Each
/// example is a function of the seed and its number.
///
///   logit = bias + effects of the ids + products of hidden numbers + effects of numbers
///
/// The k-th most frequent id of a column has a frequency proportional to k^-exponent. The
/// effect of an id is random, and has the same distribution for frequent and for rare ids.
class LongTailClicks {
 public:
  struct IdColumn {
    const char* name;
    double exponent;
    double ids;  // that may occur
    double effect;  // the standard deviation
    bool has_long_tail;
  };
  static constexpr std::array<IdColumn, 10> kIdColumns{{
      {"user", 1.0, 1e9, 0.4, true},
      {"query", 1.0, 1e9, 0.4, true},
      {"item", 1.05, 1e9, 0.4, true},
      {"page", 1.1, 1e9, 0.4, true},
      {"author", 1.15, 1e9, 0.4, true},
      {"campaign", 1.2, 1e9, 0.4, true},
      {"hour", 0.5, 24, 0.3, false},
      {"device", 1.0, 50, 0.3, false},
      {"country", 1.0, 200, 0.3, false},
      {"category", 1.0, 1000, 0.3, false},
  }};
  static constexpr int64_t kNumbers = 4;

  struct Examples {
    /// A column of integers for each of kIdColumns, and "number_0", "number_1", ...
    tessera::data::Columns columns = {};
    at::Tensor clicks = {};  // [examples] float32
    at::Tensor probabilities = {};  // [examples] float32
  };

  explicit LongTailClicks(int64_t seed) : seed_(static_cast<uint64_t>(seed)) {}

  /// The examples with the numbers first, ..., first + count - 1.
  Examples make(int64_t first, int64_t count) const;

 private:
  // A random number in [0, 1) that depends only on the seed and the arguments.
  double uniform(uint64_t purpose, uint64_t item) const;
  // A nearly normal number with mean 0 and standard deviation 1.
  double normal(uint64_t purpose, uint64_t item) const;

  uint64_t seed_;
};
