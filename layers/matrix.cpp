// SPDX-License-Identifier: Apache-2.0
#include "layers/matrix.h"

#include "src/common/active_kernels.h"

namespace tessera {

ConstMatrix matrix_of(const at::Tensor& tensor) {
  return {
      tensor.const_data_ptr<float>(),
      tensor.size(0),
      tensor.size(1),
      tensor.stride(0),
      tensor.stride(1)};
}

MutableMatrix mutable_matrix_of(const at::Tensor& tensor) {
  return {
      tensor.mutable_data_ptr<float>(),
      tensor.size(0),
      tensor.size(1),
      tensor.stride(0),
      tensor.stride(1)};
}

std::vector<ConstMatrix> matrices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<ConstMatrix> matrices;
  for (const at::Tensor& tensor : tensors) {
    matrices.push_back(matrix_of(tensor));
  }
  return matrices;
}

void multiply(
    ConstMatrix a,
    ConstMatrix b,
    MutableMatrix out,
    kernels::ProductArgs args) {
  args.rows = a.rows;
  args.columns = b.columns;
  args.depth = a.columns;
  args.a = a.data;
  args.a_row_stride = a.row_stride;
  args.a_column_stride = a.column_stride;
  args.b = b.data;
  args.b_stride = b.row_stride;
  args.out = out.data;
  args.out_stride = out.row_stride;
  active_kernels().product(args);
}

}  // namespace tessera
