// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/cross.h>

#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()
#include "layers/dense/joined_inputs.h"
#include "layers/initial_parameter.h"
#include "src/common/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/linear.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <utility>

namespace tessera {

namespace {

// x + x0 * product. The gradient of at::addcmul() has two more products of this size, because
// it multiplies by its factor 1.
struct AddedProduct : torch::autograd::Function<AddedProduct> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& x0,
      const at::Tensor& product) {
    context->save_for_backward({x0, product});
    return at::addcmul(x, x0, product);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {
        gradients[0],
        context->needs_input_grad(1) ? gradients[0] * saved[1] : at::Tensor(),
        gradients[0] * saved[0]};
  }
};

}  // namespace

CrossImpl::CrossImpl(CrossOptions options) : LayerImpl(std::move(options)) {
  const CrossOptions& checked = this->options();
  TESSERA_CHECK_VALUE(
      checked.projection_dim.value_or(1) >= 1,
      "[Cross] projection_dim must be >= 1, but got {}. Leave it unset for the full matrix.",
      checked.projection_dim.value_or(1));
  TESSERA_CHECK_VALUE(
      checked.diag_scale >= 0.0 && std::isfinite(checked.diag_scale),
      "[Cross] diag_scale must be >= 0 and finite, but got {}. Set it to 0 to add nothing to the diagonal.",
      checked.diag_scale);
  validate(checked.kernel_initializer, "[Cross kernel]");
  validate(checked.bias_initializer, "[Cross bias]");
  declare();
}

Nest<PartialShape> CrossImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  return joined_shape(input_shapes, kClassName);
}

void CrossImpl::declare_parameters() {
  const bool is_full = !options().projection_dim.has_value();
  const auto add = [&](const char* name) {
    return register_parameter(name, detail::unsized_parameter());
  };
  kernel_ = add(is_full ? "kernel" : "kernel_u");
  kernel_v_ = is_full ? at::Tensor() : add("kernel_v");
  bias_ = options().use_bias ? add("bias") : at::Tensor();
}

void CrossImpl::make_parameters(const Nest<PartialShape>& input_shapes) {
  const int64_t dim = joined_width(input_shapes, kClassName);
  const bool is_full = !options().projection_dim.has_value();
  const auto make = [](const Initializer& initializer,
                       const char* name,
                       at::IntArrayRef shape) {
    return initial_parameter(initializer, c10::str("Cross ", name), shape);
  };
  // Make all values before a parameter changes, because a callable may throw.
  const Initializer& kernels = options().kernel_initializer;
  const int64_t width = options().projection_dim.value_or(dim);
  const at::Tensor kernel =
      make(kernels, is_full ? "kernel" : "kernel_u", {dim, width});
  const at::Tensor kernel_v =
      is_full ? at::Tensor() : make(kernels, "kernel_v", {width, dim});
  const at::Tensor bias = options().use_bias
      ? make(options().bias_initializer, "bias", {dim})
      : at::Tensor();
  detail::adopt_values(kernel_, kernel);
  if (kernel_v.defined()) {
    detail::adopt_values(kernel_v_, kernel_v);
  }
  if (bias.defined()) {
    detail::adopt_values(bias_, bias);
  }
}

at::Tensor CrossImpl::forward(
    const Nest<at::Tensor>& inputs,
    const at::Tensor& given_x) {
  const std::vector<at::Tensor> parts =
      checked_inputs(inputs, kClassName, joined_shape);
  const at::Tensor x0 = joined(parts);
  const at::Tensor& x = given_x.defined() ? given_x : x0;
  check_floating(x, "x", kClassName);
  TESSERA_CHECK_VALUE(
      x0.sizes() == x.sizes(),
      "[Cross] x0 and x must have the same shape, but got {} and {}. Pass the output of the previous Cross as x, and the input of the first Cross as x0.",
      x0.sizes(),
      x.sizes());
  build_on_first_call(inputs);
  check_fits(x0, kernel_, kClassName);
  check_fits(x, kernel_, kClassName);

  const bool is_full = !kernel_v_.defined();
  const bool has_single_rows = !given_x.defined() && differ_in_batch(parts);
  at::Tensor product = compute(without_single_rows(
      {.inputs = has_single_rows ? parts : std::vector{x},
       .weight = kernel_.t(),
       .bias = is_full ? bias_ : at::Tensor()}));
  if (!is_full) {
    product = at::linear(
        product,
        kernel_v_.t(),
        bias_.defined() ? std::optional(bias_) : std::nullopt);
  }
  product = activate(options().preactivation, product);
  if (options().diag_scale != 0.0) {
    product = product.add(x, options().diag_scale);
  }
  const bool has_tangent = x._fw_grad(/*level=*/0).defined() ||
      x0._fw_grad(/*level=*/0).defined() ||
      product._fw_grad(/*level=*/0).defined();
  return has_tangent ? at::addcmul(x, x0, product)
                     : AddedProduct::apply(x, x0, product);
}

}  // namespace tessera
