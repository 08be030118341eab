// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/input_checks.h>

#include "src/common/active_kernels.h"
#include "src/common/check.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <cmath>

namespace tessera {

PartialShape check_rows(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name) {
  TESSERA_CHECK_VALUE(
      input_shapes.is_leaf(),
      "[{}] expected the shape of one input, but got {} of {} shapes. Pass one PartialShape.",
      class_name,
      input_shapes.kind(),
      input_shapes.size());
  const PartialShape& shape = input_shapes.leaf();
  TESSERA_CHECK_VALUE(
      shape.size() >= 2,
      "[{}] expected an input [batch, ..., dim] of rank 2 or more, but got {}. Add the batch dimension.",
      class_name,
      to_string(shape));
  TESSERA_CHECK_VALUE(
      !shape.back() || *shape.back() >= 1,
      "[{}] the last dimension of the input must be >= 1, but got {}. Pass an input with at least one column.",
      class_name,
      to_string(shape));
  return shape;
}

int64_t known_dim(const PartialShape& shape, const std::string& class_name) {
  TESSERA_CHECK_VALUE(
      shape.back().has_value(),
      "[{}] needs the size of the last dimension to make its parameters, but got {}. Build the layer with that size, or let the first forward() build it.",
      class_name,
      to_string(shape));
  return *shape.back();
}

void check_floating(
    const at::Tensor& input,
    const std::string& name,
    const std::string& class_name) {
  TESSERA_CHECK_VALUE(
      input.defined(),
      "[{}] {}: expected a tensor, but got an undefined tensor. Pass a batch.",
      class_name,
      name);
  TESSERA_CHECK_TYPE(
      input.is_floating_point() && input.layout() == at::kStrided,
      "[{}] {}: expected a dense floating-point tensor, but got {} {}. Convert with .to(torch::kFloat32).",
      class_name,
      name,
      input.layout(),
      input.scalar_type());
}

bool has_autocast(const at::Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  return tensor.scalar_type() != at::kDouble &&
      at::autocast::is_autocast_available(device) &&
      at::autocast::is_autocast_enabled(device);
}

bool have_same_dtype(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() ||
      (has_autocast(a) && has_autocast(b));
}

void check_fits(
    const at::Tensor& input,
    const at::Tensor& kernel,
    const std::string& class_name) {
  TESSERA_CHECK_VALUE(
      input.dim() >= 2 && input.size(-1) == kernel.size(0),
      "[{}] was built for inputs [batch, ..., {}], but got {}. Make another layer for inputs of this size.",
      class_name,
      kernel.size(0),
      input.sizes());
  TESSERA_CHECK_TYPE(
      have_same_dtype(input, kernel),
      "[{}] has parameters of {}, but got inputs of {}. Convert one of them with .to().",
      class_name,
      kernel.scalar_type(),
      input.scalar_type());
}

bool all_finite(const at::Tensor& tensor) {
  // The operators below take several microseconds, even for a bias. So a kernel checks small
  // tensors. For a large tensor, the operators use all threads.
  constexpr int64_t kSmall = 64 * 1024;
  if (tensor.is_cpu() && tensor.layout() == at::kStrided &&
      tensor.scalar_type() == at::kFloat && !tensor.is_neg() &&
      !tensor._is_zerotensor() && tensor.is_contiguous() &&
      tensor.numel() <= kSmall) {
    return std::isfinite(active_kernels().largest_magnitude(
        {.first = tensor.const_data_ptr<float>()}, 1, tensor.numel()));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.layout() == at::kSparse
      ? tensor.detach()._values()
      : tensor.detach();
  // A sum is cheaper than isfinite(). If the sum is finite, all values are. If not, it may
  // have overflowed.
  return (values.is_floating_point() &&
          std::isfinite(values.sum().item<double>())) ||
      at::isfinite(values).all().item<bool>();
}

}  // namespace tessera
