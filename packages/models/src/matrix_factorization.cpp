// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/matrix_factorization.h>

#include <tessera/common/shorten.h>
#include <tessera/layers/layer_json.h>  // defines get_config()

#include <tessera/layers/input_checks.h>
#include "src/common/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <utility>
#include <vector>

namespace tessera {

MatrixFactorizationImpl::MatrixFactorizationImpl(
    MatrixFactorizationOptions options)
    : LayerImpl(std::move(options)) {
  TESSERA_CHECK_VALUE(
      std::isfinite(this->options().global_mean),
      "[MatrixFactorization] global_mean must be finite, but got {}. Set it to the mean of the ratings.",
      this->options().global_mean);
  MatrixFactorizationImpl::reset();
}

void MatrixFactorizationImpl::reset() {
  global_mean_ = register_parameter(
      "global_mean", at::full({1}, options().global_mean, at::kFloat));
}

Nest<PartialShape> MatrixFactorizationImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  const std::vector<PartialShape> shapes = input_shapes.flatten();
  TESSERA_CHECK_VALUE(
      shapes.size() == 2,
      "[MatrixFactorization] expected two inputs, the rows of users and of items, but got {}. Pass the activations of both.",
      shapes.size());
  for (const PartialShape& shape : shapes) {
    check_rows(shape, kClassName);
  }
  const auto both = merge(shapes[0], shapes[1]);
  TESSERA_CHECK_VALUE(
      both,
      "[MatrixFactorization] users and items must have the same shape, but got {} and {}. Give their tables the same dim, and pass one item per user.",
      to_string(shapes[0]),
      to_string(shapes[1]));
  const int64_t smallest = options().use_biases ? 2 : 1;
  TESSERA_CHECK_VALUE(
      both->back().value_or(smallest) >= smallest,
      "[MatrixFactorization] a row must have a bias and one factor or more, but the rows have the shape {}. Set the dim of the tables to 1 + the number of factors.",
      to_string(*both));
  PartialShape output = *both;
  output.back() = 1;
  return output;
}

at::Tensor MatrixFactorizationImpl::forward(
    const Nest<at::Tensor>& user_and_item) {
  std::vector<at::Tensor> rows;
  std::vector<PartialShape> shapes;
  for (const auto& [path, leaf] : user_and_item) {
    check_floating(leaf, c10::str("input '", shorten(path), "'"), kClassName);
    rows.push_back(leaf);
    shapes.emplace_back(leaf.sizes().begin(), leaf.sizes().end());
  }
  compute_output_shape(user_and_item.pack(std::move(shapes)));
  TESSERA_CHECK_TYPE(
      rows[0].scalar_type() == rows[1].scalar_type(),
      "[MatrixFactorization] users and items must have the same dtype, but got {} and {}. Convert one of them with .to().",
      rows[0].scalar_type(),
      rows[1].scalar_type());
  build_on_first_call(user_and_item);

  if (!options().use_biases) {
    return (rows[0] * rows[1]).sum(-1, /*keepdim=*/true) + global_mean_;
  }
  const int64_t factors = rows[0].size(-1) - 1;
  const at::Tensor dots =
      (rows[0].narrow(-1, 1, factors) * rows[1].narrow(-1, 1, factors))
          .sum(-1, /*keepdim=*/true);
  return dots + rows[0].narrow(-1, 0, 1) + rows[1].narrow(-1, 0, 1) +
      global_mean_;
}

}  // namespace tessera
