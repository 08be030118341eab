// SPDX-License-Identifier: Apache-2.0
#include "layers/low_rank_crosses.h"

#include "src/active_kernels.h"
#include "src/parallel.h"
#include "src/step_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// u, v and perhaps bias of each layer, one after the other.
variable_list flatten(const std::vector<LowRankCross>& layers) {
  variable_list parameters;
  for (const LowRankCross& layer : layers) {
    parameters.insert(parameters.end(), {layer.u, layer.v});
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

// Rows are cut into blocks, a task each.
class RowBlocks {
 public:
  explicit RowBlocks(const at::Tensor& rows) : rows_(rows.size(0)) {
    constexpr int64_t kBytes = int64_t{256} * 1024;
    constexpr int64_t kTile = 32;  // of matrix products
    row_bytes_ = rows.size(1) * int64_t{sizeof(float)};
    size_ = std::max<int64_t>(kBytes / row_bytes_ / kTile, 1) * kTile;
  }

  int64_t count() const {
    return (rows_ + size_ - 1) / size_;
  }

  at::Tensor part(const at::Tensor& tensor, int64_t block) const {
    const int64_t begin = block * size_;
    return tensor.narrow(0, begin, std::min(size_, rows_ - begin));
  }

  void for_each(c10::function_ref<void(int64_t)> task) const {
    run_tasks(count(), rows_ * row_bytes_, [&](int64_t block) {
      const at::AutoDispatchBelowADInplaceOrView guard;  // of this thread
      task(block);
    });
  }

 private:
  int64_t rows_;
  int64_t row_bytes_;
  int64_t size_;
};

// What the backward pass needs of a layer: its input, x u and x u v.
struct Saved {
  at::Tensor x;
  at::Tensor projected;
  at::Tensor product;
};

at::Tensor by_operators(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers) {
  at::Tensor x = x0;
  for (const LowRankCross& layer : layers) {
    at::Tensor product = at::mm(at::mm(x, layer.u), layer.v);
    if (layer.bias.defined()) {
      product = product + layer.bias;
    }
    x = at::addcmul(x, x0, product);
  }
  return x;
}

const float* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

struct Crosses : torch::autograd::Function<Crosses> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x0,  // contiguous, as parameters
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
    const RowBlocks blocks(x0);
    blocks.for_each([&](int64_t block) {
      const at::Tensor first = blocks.part(x0, block);
      for (size_t i = 0; i < layers.size(); ++i) {
        const at::Tensor x = blocks.part(saved[i].x, block);
        at::Tensor projected = blocks.part(saved[i].projected, block);
        at::Tensor product = blocks.part(saved[i].product, block);
        const at::Tensor out =
            blocks.part(i + 1 < layers.size() ? saved[i + 1].x : result, block);
        at::mm_out(projected, x, layers[i].u);
        at::mm_out(product, projected, layers[i].v);
        active_kernels().cross(
            {.rows = x.size(0),
             .dim = dim,
             .x0 = first.const_data_ptr<float>(),
             .product = product.const_data_ptr<float>(),
             .bias = data_or_null(layers[i].bias),
             .x = x.const_data_ptr<float>(),
             .out = out.mutable_data_ptr<float>()});
      }
    });
    variable_list kept{x0};
    kept.insert(kept.end(), parameters.begin(), parameters.end());
    for (size_t i = 0; i < saved.size(); ++i) {
      if (i > 0) {
        kept.push_back(saved[i].x);
      }
      kept.insert(kept.end(), {saved[i].projected, saved[i].product});
    }
    context->save_for_backward(std::move(kept));
    context->saved_data["parameters"] = static_cast<int64_t>(parameters.size());
    return result;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list kept = context->get_saved_variables();
    const size_t count = context->saved_data["parameters"].toInt();
    const at::TensorList parameters(kept.data() + 1, count);
    const std::vector<LowRankCross> layers = unflatten(parameters);
    if (at::GradMode::is_enabled()) {
      // Only operators can be differentiated once more.
      const variable_list inputs(kept.begin(), kept.begin() + 1 + count);
      return torch::autograd::grad(
          {by_operators(kept[0], layers)},
          inputs,
          {gradients[0]},
          std::nullopt,
          /*create_graph=*/true,
          /*allow_unused=*/true);
    }
    std::vector<Saved> saved;
    for (size_t i = 1 + count; i<kept.size(); i += saved.size()> 1 ? 3 : 2) {
      saved.push_back(
          saved.empty() ? Saved{kept[0], kept[i], kept[i + 1]}
                        : Saved{kept[i], kept[i + 1], kept[i + 2]});
    }
    return by_blocks(layers, saved, gradients[0]);
  }

 private:
  // In the order of forward()'s arguments.
  static variable_list by_blocks(
      const std::vector<LowRankCross>& layers,
      const std::vector<Saved>& saved,
      const at::Tensor& gradient) {
    const at::Tensor& x0 = saved[0].x;
    const int64_t dim = x0.size(1);
    const RowBlocks blocks(x0);
    // Of each block, to be summed in their order.
    std::vector<LowRankCross> sums;
    for (const LowRankCross& layer : layers) {
      const int64_t rank = layer.u.size(1);
      sums.push_back(
          {empty_in_step_memory({blocks.count(), dim, rank}),
           empty_in_step_memory({blocks.count(), rank, dim}),
           layer.bias.defined() ? empty_in_step_memory({blocks.count(), dim})
                                : at::Tensor()});
    }
    const at::Tensor x0_gradient = empty_in_step_memory(x0.sizes());
    blocks.for_each([&](int64_t block) {
      const at::Tensor first = blocks.part(x0, block);
      at::Tensor of_first = blocks.part(x0_gradient, block).zero_();
      at::Tensor of_x =
          blocks.part(gradient, block).clone(at::MemoryFormat::Contiguous);
      at::Tensor of_product = at::empty_like(of_x);
      for (size_t i = layers.size(); i-- > 0;) {
        const LowRankCross& layer = layers[i];
        at::Tensor of_u = sums[i].u.select(0, block);
        at::Tensor of_v = sums[i].v.select(0, block);
        const at::Tensor of_bias = layer.bias.defined()
            ? sums[i].bias.select(0, block).zero_()
            : at::Tensor();
        active_kernels().cross_gradient(
            {.rows = first.size(0),
             .dim = dim,
             .x0 = first.const_data_ptr<float>(),
             .product =
                 blocks.part(saved[i].product, block).const_data_ptr<float>(),
             .bias = data_or_null(layer.bias),
             .gradient = of_x.const_data_ptr<float>(),
             .x0_gradient = of_first.mutable_data_ptr<float>(),
             .product_gradient = of_product.mutable_data_ptr<float>(),
             .bias_gradient = of_bias.defined()
                 ? of_bias.mutable_data_ptr<float>()
                 : nullptr});
        const at::Tensor of_projected = at::mm(of_product, layer.v.t());
        at::mm_out(
            of_v, blocks.part(saved[i].projected, block).t(), of_product);
        at::mm_out(of_u, blocks.part(saved[i].x, block).t(), of_projected);
        of_x.addmm_(of_projected, layer.u.t());
      }
      of_first.add_(of_x);
    });
    variable_list result{x0_gradient};
    for (const LowRankCross& sum : sums) {
      result.insert(result.end(), {sum.u.sum(0), sum.v.sum(0)});
      if (sum.bias.defined()) {
        result.push_back(sum.bias.sum(0));
      }
    }
    return result;
  }
};

}  // namespace

at::Tensor low_rank_crosses(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers) {
  return Crosses::apply(x0.contiguous(), at::TensorList(flatten(layers)));
}

}  // namespace tessera
