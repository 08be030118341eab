// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/dense/kernels/dense_kernels.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// Returns the dense kernels of the instruction set that active_kernels() chose.
/// Errors:  as for active_kernels().
const kernels::DenseKernelTable& active_dense_kernels();

/// A view of floats in memory as a matrix. Making a view of a part costs nothing, unlike
/// with a tensor.
template <class Float>
struct Matrix {
  Float* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 1;

  Matrix transposed() const {
    return {data, columns, rows, column_stride, row_stride};
  }
  Matrix row_range(int64_t begin, int64_t count) const {
    return {
        data + begin * row_stride, count, columns, row_stride, column_stride};
  }
  Matrix column_range(int64_t begin, int64_t count) const {
    return {
        data + begin * column_stride, rows, count, row_stride, column_stride};
  }

  operator Matrix<const Float>() const {
    return {data, rows, columns, row_stride, column_stride};
  }
};

using ConstMatrix = Matrix<const float>;
using MutableMatrix = Matrix<float>;

/// Views of a float32 tensor [rows, columns] on the CPU.
ConstMatrix matrix_of(const at::Tensor& tensor);
MutableMatrix mutable_matrix_of(const at::Tensor& tensor);
std::vector<ConstMatrix> matrices_of(const std::vector<at::Tensor>& tensors);

/// Writes the transpose of `from` to `to`, whose rows are contiguous.
void transpose(const ConstMatrix& from, const MutableMatrix& to);

/// Returns a contiguous copy of the transpose of a float32 matrix on the CPU, in step memory.
at::Tensor transposed(const at::Tensor& tensor);

/// A contiguous matrix in memory that has space for it.
inline MutableMatrix matrix_in(float* memory, int64_t rows, int64_t columns) {
  return {memory, rows, columns, columns};
}

/// Computes out = a b, a large one on all threads. A task computes it on its own thread. The
/// other fields of `args` have the meaning that they have in kernels::ProductArgs. The
/// elements of a row of b or of out must be adjacent.
void multiply(
    ConstMatrix a,
    ConstMatrix b,
    MutableMatrix out,
    kernels::ProductArgs args = {});

/// Sets `out` [1, columns] to the sum of the rows of a matrix.
void sum_rows(const ConstMatrix& matrix, const MutableMatrix& out);

/// Returns whether LibTorch should compute large products of float32. On processors of AMD,
/// multiply() is faster, because MKL does not use AVX-512 there. Others were not measured.
bool has_fast_library_products();

}  // namespace tessera
