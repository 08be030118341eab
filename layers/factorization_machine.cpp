// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/factorization_machine.h>

#include "layers/feature_stack.h"
#include "src/common/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <utility>

namespace tessera {

FactorizationMachineImpl::FactorizationMachineImpl(
    FactorizationMachineOptions options)
    : LayerImpl(std::move(options)) {
  FactorizationMachineImpl::reset();
}

void FactorizationMachineImpl::reset() {
  if (options().use_bias) {
    bias_ = register_parameter("bias", at::zeros({1}, at::kFloat));
  }
}

Nest<PartialShape> FactorizationMachineImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  const PartialShape shape = shape_of_features(input_shapes, kClassName);
  require_vectors(shape, options().use_first_order, kClassName);
  return PartialShape{shape[0], 1};
}

at::Tensor FactorizationMachineImpl::forward(const Nest<at::Tensor>& features) {
  const at::Tensor rows =
      joined_features(checked_features(features, kClassName));
  require_vectors(rows.sizes().vec(), options().use_first_order, kClassName);
  build_on_first_call(features);

  // [batch, dim]: in the first column, the sum of the weights.
  const at::Tensor sum = rows.sum(1);
  const int64_t begin = options().use_first_order ? 1 : 0;
  const int64_t dim = rows.size(2) - begin;
  const at::Tensor square_of_sum =
      sum.narrow(1, begin, dim).square().sum(1, /*keepdim=*/true);
  const at::Tensor sum_of_squares =
      rows.narrow(2, begin, dim).square().sum({1, 2}).unsqueeze(1);
  at::Tensor score = (square_of_sum - sum_of_squares) * 0.5;
  if (options().use_first_order) {
    score = score + sum.narrow(1, 0, 1);
  }
  return bias_.defined() ? score + bias_ : score;
}

}  // namespace tessera
