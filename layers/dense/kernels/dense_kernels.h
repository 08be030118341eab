// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels of dense layers. They are made like those in src/kernels/kernels.h, and do not
// check their input either.

#include "src/kernels/kernels.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::kernels {

/// Examples [begin_example, end_example) of a batch. For each example, pairwise_dots()
/// computes the dot products of all pairs of its features, and pairwise_dots_gradient()
/// computes the gradients of the features. If several features at the beginning have
/// stride 0, pairwise_dots() computes their products once.
///
///   for b in begin_example .. end_example:
///     for i in 0 .. num_features, for j in 0 .. i:   (with_self: j = i, too)
///       dots[b][pair] = x[i][b] . x[j][b]
///       gradients[i][b] += dots_gradient[b][pair] * x[j][b]
///       gradients[j][b] += dots_gradient[b][pair] * x[i][b]
struct PairwiseDotsArgs {
  const FeatureRows<const float>* features = nullptr;  // [num_features]
  int64_t num_features = 0;
  int64_t dim = 0;
  bool with_self = false;
  int64_t begin_example = 0;
  int64_t end_example = 0;
  float* dots = nullptr;  // [batch, pairs]
  FeatureRows<const float> dots_gradient = {};  // rows of [pairs]
  const FeatureRows<float>* gradients = nullptr;  // [num_features], overwritten
};

/// The gradients of x = x0 * factor + x0, elementwise. x is the input or the output of a cross:
///
///   for r in 0 .. rows:
///     x0_gradient[r] = gradient[r] * factor[r] + gradient[r] + x0_gradient[r] (if adds)
///     factor_gradient[r] = gradient[r] * x0[r] + factor_gradient[r] (if adds)
///     x[r] = x0[r] * factor[r] + x0[r]
///     bias_gradient += factor_gradient[r]
struct CrossGradientArgs {
  int64_t rows = 0;
  int64_t dim = 0;
  const float* x0 = nullptr;  // [rows, dim], like all without a comment
  const float* factor = nullptr;
  const float* gradient = nullptr;
  bool adds = false;
  float* x0_gradient = nullptr;
  float* factor_gradient = nullptr;
  float* x = nullptr;  // may be gradient; nullptr: not computed
  float* bias_gradient = nullptr;  // [dim]; nullptr: not computed
};

/// A product of two matrices, and what is done with each sum while it is in a register:
///
///   for r in 0 .. rows, for c in 0 .. columns:
///     sum = out[r, c] (if adds), else bias[c]
///     sum += added[r, c]
///     sum += a[r, k] * b[k, c] for k in 0 .. depth
///     if has_relu and sum < 0: sum = 0
///     if relu_output[r, c] <= 0: sum = 0      (the gradient of a relu)
///     crossed[r, c] = x0[r, c] * sum + x0[r, c]
///     out[r, c] = sum
///
/// The rows of b and of the results are contiguous, and so are the rows or the columns of a:
/// a_column_stride or a_row_stride is 1, unless a has one row.
struct ProductArgs {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  const float* a = nullptr;
  int64_t a_row_stride = 0;
  int64_t a_column_stride = 1;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float* out = nullptr;  // nullptr: only `crossed` is needed
  int64_t out_stride = 0;
  bool adds = false;
  bool has_relu = false;
  const float* bias = nullptr;  // [columns]; nullptr: zeros
  const float* added = nullptr;  // has out_stride, may be out; nullptr: zeros
  const float* relu_output = nullptr;  // nullptr: no relu
  int64_t relu_output_stride = 0;
  const float* x0 = nullptr;  // has out_stride, like crossed
  float* crossed = nullptr;  // nullptr: no cross
};

/// The softmax of each row, in place:
///
///   for r in 0 .. rows:
///     length = min(columns, length + r * length_step)
///     values[r, c] = exp(scale * values[r, c]) / sum   for c in 0 .. length, else 0
///     log_sums[r] = log(sum of exp(scale * values[r, c]))
///
/// The gradient of the softmax, in place, where `values` has its result:
///
///     mean = sum of values[r, c] * gradients[r, c]     for c in 0 .. length
///     gradients[r, c] = scale * values[r, c] * (gradients[r, c] - mean), else 0
///
/// Rows have space for `columns` rounded up to a multiple of 16. NaN makes the row NaN.
struct SoftmaxArgs {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // of values and gradients
  int64_t length = 0;  // >= 1
  int64_t length_step = 0;
  float scale = 1.0F;  // > 0
  float* values = nullptr;
  float* log_sums = nullptr;  // [rows]; nullptr: not computed
  float* gradients = nullptr;
};

/// Dropout of some rows of a matrix. Then `addend`, another matrix, is added:
///
///   for r in begin_row .. end_row, for c in 0 .. dim:
///     kept = random bits of (key, r, c) < threshold ? 0 : scale * x[r, c]
///     out[r, c] = kept + addend[r, c]
struct DropoutArgs {
  int64_t begin_row = 0;
  int64_t end_row = 0;
  int64_t dim = 0;
  uint64_t key = 0;
  uint32_t threshold = 0;  // the share that is dropped, times 2^32
  float scale = 1.0F;
  const float* x = nullptr;  // [rows, dim], like all
  const float* addend = nullptr;  // nullptr: zeros
  float* out = nullptr;
};

/// The kernels of one instruction set.
struct DenseKernelTable {
  /// As in KernelTable.
  std::string isa;
  void (*pairwise_dots)(const PairwiseDotsArgs&) = nullptr;
  void (*pairwise_dots_gradient)(const PairwiseDotsArgs&) = nullptr;
  void (*product)(const ProductArgs&) = nullptr;
  void (*cross_gradient)(const CrossGradientArgs&) = nullptr;
  void (*softmax)(const SoftmaxArgs&) = nullptr;
  void (*softmax_gradient)(const SoftmaxArgs&) = nullptr;
  void (*dropout)(const DropoutArgs&) = nullptr;
};

/// The kernels of the same instruction sets as available_kernels(), in the same order.
const std::vector<DenseKernelTable>& available_dense_kernels();

// Each function sets its part of `table`, as those in src/kernels/targets.h do.
void add_interaction_kernels(DenseKernelTable& table);
void add_product_kernels(DenseKernelTable& table);
void add_sequence_kernels(DenseKernelTable& table);

}  // namespace tessera::kernels
