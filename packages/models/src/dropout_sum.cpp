// SPDX-License-Identifier: Apache-2.0
#include "packages/models/src/dropout_sum.h"

#include "layers/dense/row_blocks.h"
#include "src/common/step_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <cstdint>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x and addend are contiguous float32.
at::Tensor dropout_by_kernel(
    const at::Tensor& x,
    const at::Tensor& addend,
    double probability,
    int64_t key) {
  const at::Tensor result = empty_in_step_memory(x.sizes());
  constexpr int64_t kRows = 256;
  const int64_t dim = x.size(1);
  const RowBlocks blocks(
      x.size(0), kRows, (addend.defined() ? 3 : 2) * dim * 4);
  kernels::DropoutArgs args{
      .dim = dim,
      .key = static_cast<uint64_t>(key),
      .threshold = static_cast<uint32_t>(probability * 0x1p32),
      .scale = static_cast<float>(1.0 / (1.0 - probability)),
      .x = x.const_data_ptr<float>(),
      .addend = addend.defined() ? addend.const_data_ptr<float>() : nullptr,
      .out = result.mutable_data_ptr<float>()};
  blocks.for_each([&](int64_t block) {
    kernels::DropoutArgs part = args;
    part.begin_row = blocks.begin(block);
    part.end_row = part.begin_row + blocks.rows(block);
    active_dense_kernels().dropout(part);
  });
  return result;
}

struct DropoutSum : torch::autograd::Function<DropoutSum> {
  static at::Tensor forward(
      AutogradContext* context,
      at::TensorList terms,  // x, and perhaps the addend
      double probability,
      int64_t key) {
    context->saved_data["probability"] = probability;
    context->saved_data["key"] = key;
    context->saved_data["has_addend"] = terms.size() > 1;
    return dropout_by_kernel(
        terms[0], terms.size() > 1 ? terms[1] : at::Tensor(), probability, key);
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const double probability = context->saved_data["probability"].toDouble();
    const int64_t key = context->saved_data["key"].toInt();
    const at::Tensor& gradient = gradients[0];
    const bool uses_kernel =
        !at::GradMode::is_enabled() && is_plain_float32(gradient);
    // The product with a mask supports a second derivative.
    const at::Tensor x_gradient = uses_kernel
        ? dropout_by_kernel(gradient.contiguous(), {}, probability, key)
        : gradient *
            dropout_by_kernel(
                at::ones_like(gradient, at::MemoryFormat::Contiguous),
                {},
                probability,
                key);
    // The probability and the key have no gradient.
    if (context->saved_data["has_addend"].toBool()) {
      return {x_gradient, gradient, at::Tensor(), at::Tensor()};
    }
    return {x_gradient, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor dropout_sum(
    const at::Tensor& x,
    const at::Tensor& addend,
    double probability) {
  if (probability == 0.0) {
    return addend.defined() ? x + addend : x;
  }
  if (!is_plain_float32(x) || x.dim() != 2 || x.numel() == 0 ||
      (addend.defined() && !is_plain_float32(addend)) ||
      torch::jit::tracer::isTracing()) {
    const at::Tensor kept = at::dropout(x, probability, /*train=*/true);
    return addend.defined() ? kept + addend : kept;
  }
  const auto key = at::empty({1}, at::kLong).random_().item<int64_t>();
  const at::Tensor rows = x.contiguous();
  const at::Tensor other =
      addend.defined() ? addend.contiguous() : at::Tensor();
  const bool has_gradient = at::GradMode::is_enabled() &&
      (x.requires_grad() || (addend.defined() && addend.requires_grad()));
  if (!has_gradient) {
    return dropout_by_kernel(rows, other, probability, key);
  }
  variable_list terms{rows};
  if (other.defined()) {
    terms.push_back(other);
  }
  return DropoutSum::apply(at::TensorList(terms), probability, key);
}

}  // namespace tessera
