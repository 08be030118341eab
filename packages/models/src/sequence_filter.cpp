// SPDX-License-Identifier: Apache-2.0
#include "packages/models/src/sequence_filter.h"

#include "layers/dense/row_blocks.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Columns that are orthogonal, have the length 1, and span the lowest frequencies,
// [length, columns]. Keeping these frequencies is the product with basis basis^T.
at::Tensor basis_of(int64_t length, int64_t num_frequencies) {
  // The frequency length / 2 has no sine.
  const int64_t columns = std::min(2 * num_frequencies - 1, length);
  at::Tensor basis = at::empty({length, columns}, at::kDouble);
  auto* out = basis.mutable_data_ptr<double>();
  for (int64_t row = 0; row < length; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t frequency = (column + 1) / 2;
      const bool has_sine = frequency > 0 && 2 * frequency < length;
      const double scale =
          std::sqrt((has_sine ? 2.0 : 1.0) / static_cast<double>(length));
      // The product of two integers keeps the angle exact.
      const double angle = 2.0 * std::numbers::pi *
          static_cast<double>(frequency * row % length) /
          static_cast<double>(length);
      *out++ = scale *
          (column % 2 == 0 && column > 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return basis;
}

at::Tensor low_by_kernels(
    const at::Tensor& x,
    const at::Tensor& row_splits,
    const at::Tensor& basis) {
  const at::Tensor result = empty_in_step_memory(x.sizes());
  const at::Tensor floats = basis.to(at::kFloat);
  const int64_t* splits = row_splits.const_data_ptr<int64_t>();
  const ConstMatrix in = matrix_of(x);
  const MutableMatrix out = mutable_matrix_of(result);
  const ConstMatrix all = matrix_of(floats);
  run_tasks(
      row_splits.size(0) - 1,
      2 * x.numel() * int64_t{sizeof(float)},
      [&](int64_t sequence) {
        const int64_t rows = splits[sequence + 1] - splits[sequence];
        if (rows == 0) {
          return;
        }
        const at::Tensor memory =
            empty_in_step_memory({all.columns, in.columns});
        const MutableMatrix parts = mutable_matrix_of(memory);
        const ConstMatrix own = all.row_range(all.rows - rows, rows);
        multiply(own.transposed(), in.row_range(splits[sequence], rows), parts);
        multiply(own, parts, out.row_range(splits[sequence], rows));
      });
  return result;
}

at::Tensor low_by_operators(
    const at::Tensor& x,
    const at::Tensor& row_splits,
    const at::Tensor& basis) {
  const int64_t* splits = row_splits.const_data_ptr<int64_t>();
  const at::Tensor all = basis.to(x.options());
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i + 1 < row_splits.size(0); ++i) {
    const int64_t rows = splits[i + 1] - splits[i];
    const at::Tensor own = all.narrow(0, all.size(0) - rows, rows);
    parts.push_back(
        at::matmul(own, at::matmul(own.t(), x.narrow(0, splits[i], rows))));
  }
  return parts.empty() ? x : at::cat(parts, 0);
}

at::Tensor keep_low(
    const at::Tensor& x,
    const at::Tensor& row_splits,
    const at::Tensor& basis);

struct LowFrequencies : torch::autograd::Function<LowFrequencies> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& row_splits,
      const at::Tensor& basis) {
    context->save_for_backward({row_splits, basis});
    return low_by_kernels(x, row_splits, basis);
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    return {
        keep_low(gradients[0].resolve_neg(), saved[0], saved[1]),
        at::Tensor(),
        at::Tensor()};
  }
};

at::Tensor keep_low(
    const at::Tensor& x,
    const at::Tensor& row_splits,
    const at::Tensor& basis) {
  return is_plain_float32(x) && x.numel() > 0 &&
          !torch::jit::tracer::isTracing()
      ? LowFrequencies::apply(x.contiguous(), row_splits, basis)
      : low_by_operators(x, row_splits, basis);
}

}  // namespace

at::Tensor low_frequencies(
    const at::Tensor& x,
    const at::Tensor& row_splits,
    int64_t length,
    int64_t num_frequencies) {
  return keep_low(x, row_splits, basis_of(length, num_frequencies));
}

}  // namespace tessera
