// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/factorization_machine.h>

#include <tessera/layers/layer_json.h>  // defines get_config()

#include "layers/dense/joined_inputs.h"
#include "packages/models/src/model_checks.h"

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
  check_vectors(shape, options().use_first_order, kClassName);
  return PartialShape{shape[0], 1};
}

at::Tensor FactorizationMachineImpl::forward(const Nest<at::Tensor>& features) {
  const at::Tensor rows =
      joined_features(checked_features(features, kClassName));
  check_vectors(rows.sizes().vec(), options().use_first_order, kClassName);
  build_on_first_call(features);

  const int64_t begin = options().use_first_order ? 1 : 0;
  const at::Tensor vectors = rows.slice(2, begin);
  // Multiplies each vector by the sum of those before it. The known formula with a
  // difference of squares, (|sum|² - sum of |vector|²) / 2, loses the products of a large
  // and a small vector.
  const at::Tensor sums = vectors.slice(1, 0, -1).cumsum(1);
  at::Tensor score = (sums * vectors.slice(1, 1)).sum({1, 2}).unsqueeze(1);
  if (options().use_first_order) {
    score = score + rows.select(2, 0).sum(1, /*keepdim=*/true);
  }
  return bias_.defined() ? score + bias_ : score;
}

}  // namespace tessera
