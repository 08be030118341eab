// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/transforms.h>

#include <cstdint>
#include <vector>

namespace tessera::data {

/// Boundaries for Bucketize that split these numbers into bins of one size, or as
/// near as equal numbers allow: boundary i is the number at place
/// floor(i * count / num_bins) of the sorted ones, or the second smallest where
/// that is the smallest; each is given once.
///
/// Missing and infinite numbers don't count. Exact for what it is given: pass a
/// column of the whole data, or of a sample.
/// Differs: keras.layers.Discretization.adapt() approximates and interpolates.
/// Errors:  c10::ValueError for num_bins < 2, and when there are fewer than two
///          different numbers; c10::TypeError for text.
std::vector<double> quantile_boundaries(const Column& column, int64_t num_bins);

/// Mean and variance of a column, batch by batch, for Normalize.
///
/// Source:  Chan, Golub, LeVeque 1983: updates of pairs of means and squares.
class NormalizeBuilder {
 public:
  /// Missing numbers don't count.
  /// Errors:  c10::TypeError for text, c10::ValueError for infinite numbers.
  void add(const Column& column);
  void merge(const NormalizeBuilder& other);

  /// Errors:  c10::ValueError when there was no number.
  transforms::Normalize finish() const;

 private:
  int64_t count_ = 0;
  double mean_ = 0.0;
  double squares_ = 0.0;  // of the differences from the mean
};

}  // namespace tessera::data
