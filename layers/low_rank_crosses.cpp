// SPDX-License-Identifier: Apache-2.0
#include "layers/low_rank_crosses.h"

#include "layers/row_blocks.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"
#include "src/tables/active_kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <cstdint>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The u, v and perhaps bias of each layer, in the order of layers.
variable_list flatten(const std::vector<LowRankCross>& layers) {
  variable_list parameters;
  for (const LowRankCross& layer : layers) {
    parameters.insert(
        parameters.end(), {layer.u.contiguous(), layer.v.contiguous()});
    if (layer.bias.defined()) {
      parameters.push_back(layer.bias.contiguous());
    }
  }
  return parameters;
}

std::vector<LowRankCross> unflatten(at::TensorList parameters) {
  const bool has_bias = parameters.size() > 2 && parameters[2].dim() == 1;
  std::vector<LowRankCross> layers;
  for (size_t i = 0; i < parameters.size(); i += has_bias ? 3 : 2) {
    layers.push_back(
        {parameters[i],
         parameters[i + 1],
         has_bias ? parameters[i + 2] : at::Tensor()});
  }
  return layers;
}

RowBlocks blocks_of(int64_t rows, int64_t dim) {
  constexpr int64_t kBytes = int64_t{256} * 1024;
  const int64_t row_bytes = dim * int64_t{sizeof(float)};
  const int64_t tiles =
      std::max<int64_t>(kBytes / row_bytes / RowBlocks::kTile, 1);
  return {rows, tiles * RowBlocks::kTile, row_bytes};
}

// The tensors of a layer that the backward pass needs: its input x, x u and x u v.
struct Saved {
  at::Tensor x;
  at::Tensor projected;
  at::Tensor product;
};

// The gradients in the order of Crosses::forward()'s arguments, computed by operators
// that support a second derivative.
variable_list gradients_by_operators(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers,
    at::Tensor gradient) {
  std::vector<Saved> saved;
  at::Tensor x = x0;
  for (const LowRankCross& layer : layers) {
    const at::Tensor projected = at::mm(x, layer.u);
    at::Tensor product = at::mm(projected, layer.v);
    if (layer.bias.defined()) {
      product = product + layer.bias;
    }
    saved.push_back({x, projected, product});
    x = at::addcmul(x, x0, product);
  }
  std::vector<LowRankCross> layer_gradients(layers.size());
  at::Tensor x0_gradient = at::zeros_like(x0);
  for (size_t i = layers.size(); i-- > 0;) {
    x0_gradient = x0_gradient + gradient * saved[i].product;
    const at::Tensor product_gradient = gradient * x0;
    const at::Tensor projected_gradient =
        at::mm(product_gradient, layers[i].v.t());
    layer_gradients[i] = {
        at::mm(saved[i].x.t(), projected_gradient),
        at::mm(saved[i].projected.t(), product_gradient),
        layers[i].bias.defined() ? product_gradient.sum(0) : at::Tensor()};
    gradient = gradient + at::mm(projected_gradient, layers[i].u.t());
  }
  variable_list result = flatten(layer_gradients);
  result.insert(result.begin(), x0_gradient + gradient);
  return result;
}

const float* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

// Computes one layer for some rows. `out` may be rows.x.
void cross(
    const at::Tensor& x0,
    const LowRankCross& layer,
    const Saved& rows,
    const at::Tensor& out) {
  multiply(rows.x, layer.u, rows.projected);
  multiply(rows.projected, layer.v, rows.product);
  active_kernels().cross(
      {.rows = x0.size(0),
       .dim = x0.size(1),
       .x0 = x0.const_data_ptr<float>(),
       .product = rows.product.const_data_ptr<float>(),
       .bias = data_or_null(layer.bias),
       .x = rows.x.const_data_ptr<float>(),
       .out = out.mutable_data_ptr<float>()});
}

at::Tensor crosses_without_gradients(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers) {
  const at::Tensor result = empty_in_step_memory(x0.sizes());
  const RowBlocks blocks = blocks_of(x0.size(0), x0.size(1));
  blocks.for_each([&](int64_t block) {
    const at::Tensor first = blocks.part(x0, block);
    const at::Tensor out = blocks.part(result, block);
    const at::Tensor product = at::empty_like(first);
    for (size_t i = 0; i < layers.size(); ++i) {
      const at::Tensor projected =
          at::empty({first.size(0), layers[i].u.size(1)}, first.options());
      cross(first, layers[i], {i == 0 ? first : out, projected, product}, out);
    }
  });
  return result;
}

struct Crosses : torch::autograd::Function<Crosses> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x0,  // contiguous
      at::TensorList parameters) {
    const std::vector<LowRankCross> layers = unflatten(parameters);
    const int64_t rows = x0.size(0);
    const int64_t dim = x0.size(1);
    std::vector<Saved> saved(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      saved[i] = {
          i == 0 ? x0 : empty_in_step_memory({rows, dim}),
          empty_in_step_memory({rows, layers[i].u.size(1)}),
          empty_in_step_memory({rows, dim})};
    }
    const at::Tensor result = empty_in_step_memory({rows, dim});
    const RowBlocks blocks = blocks_of(x0.size(0), x0.size(1));
    blocks.for_each([&](int64_t block) {
      const at::Tensor first = blocks.part(x0, block);
      for (size_t i = 0; i < layers.size(); ++i) {
        cross(
            first,
            layers[i],
            {blocks.part(saved[i].x, block),
             blocks.part(saved[i].projected, block),
             blocks.part(saved[i].product, block)},
            blocks.part(
                i + 1 < layers.size() ? saved[i + 1].x : result, block));
      }
    });
    variable_list saved_tensors{x0};
    saved_tensors.insert(
        saved_tensors.end(), parameters.begin(), parameters.end());
    for (size_t i = 0; i < saved.size(); ++i) {
      if (i > 0) {
        saved_tensors.push_back(saved[i].x);
      }
      saved_tensors.insert(
          saved_tensors.end(), {saved[i].projected, saved[i].product});
    }
    context->save_for_backward(std::move(saved_tensors));
    context->saved_data["parameters"] = static_cast<int64_t>(parameters.size());
    return result;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved_tensors = context->get_saved_variables();
    const size_t count = context->saved_data["parameters"].toInt();
    const at::TensorList parameters(saved_tensors.data() + 1, count);
    const std::vector<LowRankCross> layers = unflatten(parameters);
    if (at::GradMode::is_enabled()) {
      return gradients_by_operators(saved_tensors[0], layers, gradients[0]);
    }
    std::vector<Saved> saved{
        {saved_tensors[0], saved_tensors[1 + count], saved_tensors[2 + count]}};
    for (size_t i = 3 + count; i + 2 < saved_tensors.size(); i += 3) {
      saved.push_back(
          {saved_tensors[i], saved_tensors[i + 1], saved_tensors[i + 2]});
    }
    const bool is_training =
        context->needs_input_grad({torch::autograd::IndexRange(1, 1 + count)});
    variable_list result =
        gradients_by_blocks(layers, saved, gradients[0], is_training);
    result.resize(1 + count);
    return result;
  }

 private:
  // The gradients in the order of forward()'s arguments. Unless `is_training`, only the
  // gradient of x0.
  static variable_list gradients_by_blocks(
      const std::vector<LowRankCross>& layers,
      const std::vector<Saved>& saved,
      const at::Tensor& gradient,
      bool is_training) {
    const at::Tensor& x0 = saved[0].x;
    const int64_t dim = x0.size(1);
    const RowBlocks blocks = blocks_of(x0.size(0), x0.size(1));
    // The gradients of the parameters for each block. They are added in the order of
    // blocks, for reproducible results. Those of u are transposed.
    std::vector<LowRankCross> sums(layers.size());
    std::vector<LowRankCross> transposed;
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto& [u, v, bias] = layers[i];
      transposed.push_back({u.t().contiguous(), v.t().contiguous(), {}});
      if (is_training) {
        const std::vector<int64_t> shape{blocks.count(), u.size(1), dim};
        sums[i] = {
            empty_in_step_memory(shape),
            empty_in_step_memory(shape),
            bias.defined() ? empty_in_step_memory({blocks.count(), dim})
                           : at::Tensor()};
      }
    }
    const at::Tensor x0_gradient = empty_in_step_memory(x0.sizes());
    blocks.for_each([&](int64_t block) {
      const at::Tensor first = blocks.part(x0, block);
      at::Tensor first_gradient = blocks.part(x0_gradient, block).zero_();
      at::Tensor x_gradient =
          blocks.part(gradient, block).clone(at::MemoryFormat::Contiguous);
      const at::Tensor product_gradient = at::empty_like(x_gradient);
      for (size_t i = layers.size(); i-- > 0;) {
        const LowRankCross& layer = layers[i];
        const at::Tensor bias_gradient = sums[i].bias.defined()
            ? sums[i].bias.select(0, block).zero_()
            : at::Tensor();
        active_kernels().cross_gradient(
            {.rows = first.size(0),
             .dim = dim,
             .x0 = first.const_data_ptr<float>(),
             .product =
                 blocks.part(saved[i].product, block).const_data_ptr<float>(),
             .bias = data_or_null(layer.bias),
             .gradient = x_gradient.const_data_ptr<float>(),
             .x0_gradient = first_gradient.mutable_data_ptr<float>(),
             .product_gradient = product_gradient.mutable_data_ptr<float>(),
             .bias_gradient = bias_gradient.defined()
                 ? bias_gradient.mutable_data_ptr<float>()
                 : nullptr});
        const at::Tensor projected = blocks.part(saved[i].projected, block);
        const at::Tensor projected_gradient = at::empty_like(projected);
        multiply(product_gradient, transposed[i].v, projected_gradient);
        if (is_training) {
          multiply(
              projected.t().contiguous(),
              product_gradient,
              sums[i].v.select(0, block));
          multiply(
              projected_gradient.t().contiguous(),
              blocks.part(saved[i].x, block),
              sums[i].u.select(0, block));
        }
        multiply(projected_gradient, transposed[i].u, x_gradient, /*add=*/true);
      }
      first_gradient.add_(x_gradient);
    });
    variable_list result{x0_gradient};
    if (!is_training) {
      return result;
    }
    for (const LowRankCross& sum : sums) {
      result.insert(result.end(), {sum.u.sum(0).t(), sum.v.sum(0)});
      if (sum.bias.defined()) {
        result.push_back(sum.bias.sum(0));
      }
    }
    return result;
  }
};

}  // namespace

bool has_low_rank_crosses(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers) {
  const auto fits = [](const at::Tensor& tensor, at::IntArrayRef shape) {
    return is_plain_float32(tensor) && tensor.sizes() == shape;
  };
  if (layers.empty() || x0.dim() < 2 || x0.numel() == 0 ||
      torch::jit::tracer::isTracing()) {
    return false;
  }
  const int64_t dim = x0.size(-1);
  const RowBlocks blocks = blocks_of(x0.numel() / dim, dim);
  bool has_all = fits(x0, x0.sizes()) && blocks.count() >= thread_count();
  for (const LowRankCross& layer : layers) {
    const int64_t rank = layer.u.size(-1);
    has_all = has_all && rank <= blocks.size() && fits(layer.u, {dim, rank}) &&
        fits(layer.v, {rank, dim}) &&
        layer.bias.defined() == layers[0].bias.defined() &&
        (!layer.bias.defined() || fits(layer.bias, {dim}));
  }
  return has_all;
}

at::Tensor low_rank_crosses(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers) {
  const at::Tensor rows = x0.reshape({-1, x0.size(-1)}).contiguous();
  const variable_list parameters = flatten(layers);
  const auto requires_grad = [](const at::Tensor& t) {
    return t.requires_grad();
  };
  const bool has_gradient = at::GradMode::is_enabled() &&
      (rows.requires_grad() || std::ranges::any_of(parameters, requires_grad));
  const at::Tensor result = has_gradient
      ? Crosses::apply(rows, at::TensorList(parameters))
      : crosses_without_gradients(rows, unflatten(parameters));
  return x0.dim() == 2 ? result : result.view(x0.sizes());
}

}  // namespace tessera
