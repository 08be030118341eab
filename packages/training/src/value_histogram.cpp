// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/value_histogram.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tessera::training {

namespace {

std::vector<double> make_limits() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) {
    positive.push_back(limit);
  }
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits;
  for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) {
    limits.push_back(-*limit);
  }
  limits.push_back(0.0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

const std::vector<double>& all_limits() {
  static const std::vector<double> limits = make_limits();
  return limits;
}

}  // namespace

ValueHistogram::ValueHistogram() : counts_(all_limits().size(), 0.0) {}

void ValueHistogram::add(double value) {
  if (!std::isfinite(value)) {
    ++non_finite_;
    return;
  }
  const auto& limits = all_limits();
  const auto bin = std::lower_bound(limits.begin(), limits.end(), value);
  counts_[static_cast<size_t>(bin - limits.begin())] += 1.0;
  ++count_;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
  sum_ += value;
  sum_of_squares_ += value * value;
}

std::vector<ValueHistogram::Bin> ValueHistogram::bins() const {
  const auto& limits = all_limits();
  std::vector<Bin> bins;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] > 0.0) {
      const bool is_gap = i > 0 && counts_[i - 1] <= 0.0;
      if (is_gap) {
        bins.push_back({limits[i - 1], 0.0});
      }
      bins.push_back({limits[i], counts_[i]});
    }
  }
  return bins;
}

}  // namespace tessera::training
