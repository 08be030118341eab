// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/matrix.h"

#include "src/common/active_kernels.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"
#include "src/kernels/targets.h"

#include <ATen/core/functional.h>

#include <algorithm>
#include <type_traits>

namespace tessera {

namespace {

template <class Float>
Matrix<Float> view_of(const at::Tensor& tensor, Float* data) {
  return {
      data,
      tensor.size(0),
      tensor.size(1),
      tensor.stride(0),
      // LibTorch allows any stride for a single column. Kernels expect 1.
      tensor.size(1) == 1 ? 1 : tensor.stride(1)};
}

}  // namespace

const kernels::DenseKernelTable& active_dense_kernels() {
  static const kernels::DenseKernelTable& table = *kernels::find_table(
      kernels::available_dense_kernels(), active_kernels().isa);
  return table;
}

ConstMatrix matrix_of(const at::Tensor& tensor) {
  return view_of(tensor, tensor.const_data_ptr<float>());
}

MutableMatrix mutable_matrix_of(const at::Tensor& tensor) {
  return view_of(tensor, tensor.mutable_data_ptr<float>());
}

std::vector<ConstMatrix> matrices_of(const std::vector<at::Tensor>& tensors) {
  return c10::fmap(tensors, matrix_of);
}

// Copies some rows at a time, because the compiler then writes several adjacent floats at
// once. On Zen 3, weights of 640 x 32 took 7 us. LibTorch's copy took 19 to 38 us.
void transpose(const ConstMatrix& from, const MutableMatrix& to) {
  constexpr int64_t kRows = 8;
  const auto copy_rows = [&](int64_t row, auto count) {
    const float* source = from.data + row * from.row_stride;
    for (int64_t column = 0; column < from.columns; ++column) {
      for (int64_t i = 0; i < count; ++i) {
        to.data[column * to.row_stride + row + i] = source[i * from.row_stride];
      }
      source += from.column_stride;
    }
  };
  int64_t row = 0;
  for (; row + kRows <= from.rows; row += kRows) {
    copy_rows(row, std::integral_constant<int64_t, kRows>());
  }
  for (; row < from.rows; ++row) {
    copy_rows(row, std::integral_constant<int64_t, 1>());
  }
}

at::Tensor transposed(const at::Tensor& tensor) {
  const at::Tensor result =
      empty_in_step_memory({tensor.size(1), tensor.size(0)});
  transpose(matrix_of(tensor), mutable_matrix_of(result));
  return result;
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
  // A part of `a` with this many rows stays in the second-level cache. Tiles have 12 or 6
  // rows. The parts change no bit of the result.
  constexpr int64_t kRows = 240;
  constexpr int64_t kColumns = 256;
  constexpr int64_t kFewProducts = int64_t{1} << 20;
  if (args.rows * args.columns * args.depth < kFewProducts) {
    active_dense_kernels().product(args);
    return;
  }
  const int64_t across = (args.columns + kColumns - 1) / kColumns;
  const int64_t down = (args.rows + kRows - 1) / kRows;
  const int64_t bytes = (args.rows + args.columns) * args.depth *
      static_cast<int64_t>(sizeof(float));
  run_tasks(across * down, bytes, [&](int64_t task) {
    const int64_t row = task / across * kRows;
    const int64_t column = task % across * kColumns;
    const auto move = [&](auto& pointer, int64_t stride) {
      if (pointer != nullptr) {
        pointer += row * stride + column;
      }
    };
    kernels::ProductArgs part = args;
    part.rows = std::min(kRows, args.rows - row);
    part.columns = std::min(kColumns, args.columns - column);
    part.a += row * args.a_row_stride;
    part.b += column;
    move(part.out, args.out_stride);
    move(part.bias, 0);
    move(part.added, args.out_stride);
    move(part.relu_output, args.relu_output_stride);
    move(part.x0, args.out_stride);
    move(part.crossed, args.out_stride);
    active_dense_kernels().product(part);
  });
}

void sum_rows(const ConstMatrix& matrix, const MutableMatrix& out) {
  constexpr float kOne = 1.0F;
  const ConstMatrix ones{
      .data = &kOne,
      .rows = 1,
      .columns = matrix.rows,
      .row_stride = 0,
      .column_stride = 0};
  multiply(ones, matrix, out);
}

bool has_fast_library_products() {
#if defined(__x86_64__)
  static const bool is_intel = __builtin_cpu_is("intel") != 0;
  return is_intel;
#else
  return true;
#endif
}

}  // namespace tessera
