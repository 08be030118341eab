// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/transforms.h>

#include <cstdint>
#include <vector>

namespace tessera::data {

/// Boundaries for Bucketize that split the numbers of a column into bins of equal size,
/// or nearly so if many numbers are equal. Boundary i is the sorted number at position
/// floor(i * count / min(num_bins, count)). If this is the smallest number, the next larger
/// one takes its place. Equal boundaries are returned once.
///
/// Missing and infinite numbers are ignored. The boundaries are exact for the given
/// column, so pass a column of the whole data or of a sample.
/// Differs: keras.layers.Discretization.adapt() approximates and interpolates.
/// Errors:  c10::ValueError for num_bins < 2, and when there are fewer than two
///          different numbers; c10::TypeError for text.
std::vector<double> quantile_boundaries(const Column& column, int64_t num_bins);

// snippet: tests/docs/reference_data_test.cpp NormalizeBuilder
/// Computes the mean and variance of a column for Normalize, batch by batch.
///
///   NormalizeBuilder builder;
///   for (const Columns& batch : batches) {
///     builder.add(batch.at("age"));
///   }
///   const transforms::Normalize age = builder.finish();
///
/// Source:  Chan, Golub, LeVeque 1983: updates of pairs of means and squares.
class NormalizeBuilder {
 public:
  /// Adds the numbers of a column. Missing numbers are ignored.
  /// Errors:  c10::TypeError for text, c10::ValueError for infinite numbers.
  void add(const Column& column);
  void merge(const NormalizeBuilder& other);

  /// Errors:  c10::ValueError if no number was added.
  transforms::Normalize finish() const;

 private:
  int64_t count_ = 0;
  double mean_ = 0.0;
  double squared_deviations_ =
      0.0;  // the sum of squared differences from the mean
};

}  // namespace tessera::data
