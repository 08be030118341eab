// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

struct MeanAndSpread {
  double mean = 0.0;
  double spread = 0.0;  // the standard deviation; 0 for one value
};

/// The mean and the spread of one value or more.
inline MeanAndSpread mean_and_spread(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  MeanAndSpread result;
  for (const double value : values) {
    result.mean += value / count;
  }
  double squares = 0.0;
  for (const double value : values) {
    squares += std::pow(value - result.mean, 2);
  }
  result.spread = count > 1.0 ? std::sqrt(squares / (count - 1.0)) : 0.0;
  return result;
}

struct MeanAndError {
  double mean = 0.0;
  double error = 0.0;  // the standard error of the mean
};

/// The mean of one value or more, which are a sample.
inline MeanAndError mean_and_error(const std::vector<double>& values) {
  const auto [mean, spread] = mean_and_spread(values);
  return {
      .mean = mean,
      .error = spread / std::sqrt(static_cast<double>(values.size()))};
}
