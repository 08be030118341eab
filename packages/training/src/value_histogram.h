// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace tessera::training {

/// The distribution of some numbers, as TensorBoard stores it: in bins whose limits
/// grow by 10% each, from 1e-12 to 1e20, and the same below 0. It takes the same memory
/// for any number of values.
/// Source:  tensorflow/core/lib/histogram/histogram.cc.
class ValueHistogram {
 public:
  ValueHistogram();

  /// Values that are not finite are only counted, because no bin has them.
  void add(double value);

  int64_t count() const {
    return count_;
  }
  int64_t non_finite() const {
    return non_finite_;
  }
  double min() const {
    return min_;
  }
  double max() const {
    return max_;
  }
  double sum() const {
    return sum_;
  }
  double sum_of_squares() const {
    return sum_of_squares_;
  }

  /// The values in (limit of the bin before, limit].
  struct Bin {
    double limit = 0.0;
    double count = 0.0;
  };
  /// The bins with values. An empty one stands for each run of empty bins, so that
  /// each bin begins where the one before ends.
  std::vector<Bin> bins() const;

 private:
  int64_t count_ = 0;
  int64_t non_finite_ = 0;
  double min_ = std::numeric_limits<double>::infinity();
  double max_ = -std::numeric_limits<double>::infinity();
  double sum_ = 0.0;
  double sum_of_squares_ = 0.0;
  std::vector<double> counts_;
};

}  // namespace tessera::training
