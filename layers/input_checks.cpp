// SPDX-License-Identifier: Apache-2.0
#include "layers/input_checks.h"

#include <c10/util/Exception.h>

namespace tessera {

const PartialShape& require_rows(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name) {
  TORCH_CHECK_VALUE(
      input_shapes.is_leaf(),
      "[",
      class_name,
      "] expected the shape of one input, but got ",
      input_shapes.kind(),
      " of ",
      input_shapes.size(),
      ".");
  const PartialShape& shape = input_shapes.leaf();
  TORCH_CHECK_VALUE(
      shape.size() >= 2,
      "[",
      class_name,
      "] expected an input [batch, ..., dim] of rank 2 or more, but got ",
      to_string(shape),
      ".");
  TORCH_CHECK_VALUE(
      !shape.back() || *shape.back() >= 1,
      "[",
      class_name,
      "] the last dimension of its input must be >= 1, but got ",
      to_string(shape),
      ".");
  return shape;
}

int64_t known_dim(const PartialShape& shape, const std::string& class_name) {
  TORCH_CHECK_VALUE(
      shape.back().has_value(),
      "[",
      class_name,
      "] can't be built for ",
      to_string(shape),
      ": its parameters need the last dimension.");
  return *shape.back();
}

void require_floating(
    const at::Tensor& input,
    const std::string& name,
    const std::string& class_name) {
  TORCH_CHECK_VALUE(
      input.defined(),
      "[",
      class_name,
      "] ",
      name,
      ": expected a tensor, but got an undefined one.");
  TORCH_CHECK_TYPE(
      input.is_floating_point() && input.layout() == at::kStrided,
      "[",
      class_name,
      "] ",
      name,
      ": expected a dense tensor of floating point, but got ",
      input.layout(),
      " ",
      input.scalar_type(),
      ". Convert with .to(torch::kFloat32).");
}

void require_fit(
    const at::Tensor& input,
    const at::Tensor& kernel,
    const std::string& class_name) {
  TORCH_CHECK_VALUE(
      input.dim() >= 2 && input.size(-1) == kernel.size(0),
      "[",
      class_name,
      "] was built for inputs [batch, ..., ",
      kernel.size(0),
      "], but got ",
      input.sizes(),
      ". Make another layer for these.");
  TORCH_CHECK_TYPE(
      input.scalar_type() == kernel.scalar_type(),
      "[",
      class_name,
      "] has parameters of ",
      kernel.scalar_type(),
      ", but got inputs of ",
      input.scalar_type(),
      ". Convert one of them with .to().");
}

}  // namespace tessera
