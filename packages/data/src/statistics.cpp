// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/statistics.h>

#include "packages/data/src/column_values.h"
#include "src/common/check.h"

#include <algorithm>
#include <cmath>
#include <concepts>

namespace tessera::data {

namespace {

// All numbers that are not missing.
std::vector<double> numbers_of(const Column& column, const char* where) {
  validate(column, where);
  std::vector<double> numbers;
  visit_values(column, [&]<class T>(std::span<const T> values) {
    if constexpr (std::same_as<T, std::string>) {
      TESSERA_CHECK_TYPE(
          false,
          "[{}] expected integers or floats, but got text. Pass a column of numbers.",
          where);
    } else {
      numbers.reserve(values.size());
      for (const T& value : values) {
        if (!is_missing(value)) {
          numbers.push_back(static_cast<double>(value));
        }
      }
    }
  });
  return numbers;
}

}  // namespace

std::vector<double> quantile_boundaries(
    const Column& column,
    int64_t num_bins) {
  TESSERA_CHECK_VALUE(
      num_bins >= 2,
      "[quantile_boundaries] num_bins must be >= 2, but got {}. Increase it.",
      num_bins);
  std::vector<double> numbers = numbers_of(column, "quantile_boundaries");
  std::erase_if(numbers, [](double number) { return !std::isfinite(number); });
  std::ranges::sort(numbers);
  TESSERA_CHECK_VALUE(
      !numbers.empty() && numbers.front() < numbers.back(),
      "[quantile_boundaries] expected two different numbers or more, but got {}{}. Leave the column out.",
      numbers.size(),
      numbers.empty() ? "" : " equal ones");
  const auto count = std::ssize(numbers);
  // If many numbers equal the smallest one, they must be in the first bin. A boundary at
  // the smallest number would leave that bin empty.
  const double lowest = *std::ranges::upper_bound(numbers, numbers.front());
  const int64_t bins = std::min(num_bins, count);  // at most one bin per number
  std::vector<double> boundaries;
  for (int64_t i = 1; i < bins; ++i) {
    // floor(i * count / bins), computed without the product, which may overflow.
    const int64_t position = i * (count / bins) + i * (count % bins) / bins;
    const double boundary = std::max(numbers[position], lowest);
    if (boundaries.empty() || boundary > boundaries.back()) {
      boundaries.push_back(boundary);
    }
  }
  return boundaries;
}

void NormalizeBuilder::add(const Column& column) {
  NormalizeBuilder batch;
  for (const double number : numbers_of(column, "NormalizeBuilder")) {
    TESSERA_CHECK_VALUE(
        std::isfinite(number),
        "[NormalizeBuilder] expected finite numbers, but got {}. Clean the column.",
        number);
    ++batch.count_;
    const double difference = number - batch.mean_;
    batch.mean_ += difference / static_cast<double>(batch.count_);
    batch.squared_deviations_ += difference * (number - batch.mean_);
  }
  merge(batch);
}

void NormalizeBuilder::merge(const NormalizeBuilder& other) {
  if (other.count_ == 0) {
    return;
  }
  const auto own = static_cast<double>(count_);
  const auto added = static_cast<double>(other.count_);
  const double difference = other.mean_ - mean_;
  squared_deviations_ += other.squared_deviations_ +
      difference * difference * own * added / (own + added);
  mean_ += difference * added / (own + added);
  count_ += other.count_;
}

transforms::Normalize NormalizeBuilder::finish() const {
  TESSERA_CHECK_VALUE(
      count_ > 0,
      "[NormalizeBuilder] expected numbers, but all were missing. Leave the column out.");
  return {
      .mean = mean_,
      .variance = squared_deviations_ / static_cast<double>(count_)};
}

}  // namespace tessera::data
