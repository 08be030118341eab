// SPDX-License-Identifier: Apache-2.0
#include "layers/low_rank_crosses.h"

#include "layers/matrix.h"
#include "layers/partial_gradients.h"
#include "layers/row_blocks.h"
#include "src/common/active_kernels.h"
#include "src/common/step_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

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
  constexpr int64_t kBytes = int64_t{320} * 1024;
  const int64_t row_bytes = dim * int64_t{sizeof(float)};
  const int64_t tiles =
      std::max<int64_t>(kBytes / row_bytes / RowBlocks::kTile, 1);
  return {rows, tiles * RowBlocks::kTile, row_bytes};
}

// How many rows of a block the backward pass computes at once. It reads and writes the
// gradients of the weights once for each part, so small parts are slow. On Zen 3, the crosses
// of a DCN-v2 (dim 640) took 1.2 to 1.4 times as long with 8 rows, which fit into the
// second-level cache of 512 KiB, and about as long with 128 rows as with 64. On Intel Xeon, 16
// to 64 rows were equally fast. The number changes no bit of the results.
int64_t part_rows_of(int64_t dim) {
  constexpr int64_t kRows = 64;
  constexpr int64_t kFloats = kRows * 640;
  return std::max(kRows, kFloats / dim);
}

// The gradients in the order of Crosses::forward()'s arguments, computed by operators
// that support a second derivative.
variable_list gradients_by_operators(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers,
    at::Tensor gradient) {
  struct Saved {
    at::Tensor x;
    at::Tensor projected;
    at::Tensor product;
  };
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

// The layers as matrices.
struct CrossWeights {
  ConstMatrix u;
  ConstMatrix v;
  const float* bias = nullptr;
};

std::vector<CrossWeights> weights_of(const std::vector<LowRankCross>& layers) {
  std::vector<CrossWeights> weights;
  for (const LowRankCross& layer : layers) {
    weights.push_back(
        {matrix_of(layer.u),
         matrix_of(layer.v),
         layer.bias.defined() ? layer.bias.const_data_ptr<float>() : nullptr});
  }
  return weights;
}

// Computes all layers. If `saved` has a place for each layer, it gets the layer's x u
// [rows, rank]. The backward pass computes everything else again from these. That takes less
// time than to write and read larger tensors.
at::Tensor compute(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers,
    std::vector<at::Tensor>& saved) {
  const int64_t rows = x0.size(0);
  const int64_t dim = x0.size(1);
  const std::vector<CrossWeights> weights = weights_of(layers);
  int64_t rank = 1;
  std::vector<MutableMatrix> projected(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    rank = std::max(rank, weights[i].u.columns);
    if (!saved.empty()) {
      saved[i] = empty_in_step_memory({rows, weights[i].u.columns});
      projected[i] = mutable_matrix_of(saved[i]);
    }
  }
  const at::Tensor result = empty_in_step_memory({rows, dim});
  const ConstMatrix first = matrix_of(x0);
  const MutableMatrix out = mutable_matrix_of(result);
  const RowBlocks blocks = blocks_of(rows, dim).divided_for_threads();
  blocks.for_each([&](int64_t block) {
    const ConstMatrix own_first = blocks.part(first, block);
    const MutableMatrix own_out = blocks.part(out, block);
    at::Tensor memory;
    if (saved.empty()) {
      memory = empty_in_step_memory({own_out.rows * rank});
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      // All layers write to the result. The last one stays there.
      const ConstMatrix x = i == 0 ? own_first : ConstMatrix(own_out);
      const MutableMatrix own_projected = saved.empty()
          ? matrix_in(
                memory.mutable_data_ptr<float>(), x.rows, weights[i].u.columns)
          : blocks.part(projected[i], block);
      multiply(x, weights[i].u, own_projected);
      multiply(
          own_projected,
          weights[i].v,
          MutableMatrix{.row_stride = dim},
          {.bias = weights[i].bias,
           .x0 = own_first.data,
           .x = x.data,
           .crossed = own_out.data});
    }
  });
  return result;
}

// Memory for the matrices that the backward pass computes for some rows.
class CrossScratch {
 public:
  CrossScratch(size_t layers, int64_t rows, int64_t dim, int64_t rank)
      : layers_(static_cast<int64_t>(layers)),
        rows_(rows),
        dim_(dim),
        memory_(empty_in_step_memory({rows * (2 * layers_ * dim + rank)})) {}

  MutableMatrix x_gradient(int64_t rows) const {
    return matrix(0, rows);
  }
  // The x u v + bias of a layer, and then the gradient of x u v.
  MutableMatrix factor(size_t layer, int64_t rows) const {
    return matrix(1 + static_cast<int64_t>(layer), rows);
  }
  // The input of a layer above the first one.
  MutableMatrix x(size_t layer, int64_t rows) const {
    return matrix(layers_ + static_cast<int64_t>(layer), rows);
  }
  MutableMatrix projected_gradient(int64_t rows, int64_t rank) const {
    return matrix_in(matrix(2 * layers_, 0).data, rows, rank);
  }

 private:
  MutableMatrix matrix(int64_t index, int64_t rows) const {
    return matrix_in(
        memory_.mutable_data_ptr<float>() + index * rows_ * dim_, rows, dim_);
  }

  int64_t layers_;
  int64_t rows_;
  int64_t dim_;
  at::Tensor memory_;
};

// Computes the gradients for blocks of rows. Two other ways were slower on Zen 3: 64 columns of
// all matrices at a time, which stay in the first-level cache, took 1.01 to 1.04 times as long.
// Two passes, of which the second one has no partial sums of the weights' gradients, took 1.07
// to 1.18 times as long, because the passes recompute more products.
class CrossGradients {
 public:
  // `gradient` is contiguous. Unless `is_training`, run() computes only the gradient of x0.
  CrossGradients(
      const at::Tensor& x0,
      const std::vector<LowRankCross>& layers,
      const std::vector<at::Tensor>& projected,
      const at::Tensor& gradient,
      bool is_training)
      : blocks_(blocks_of(x0.size(0), x0.size(1))),
        x0_(matrix_of(x0)),
        gradient_(matrix_of(gradient)),
        has_bias_(layers[0].bias.defined()),
        is_training_(is_training),
        weights_(weights_of(layers)),
        projected_(matrices_of(projected)) {
    variable_list tensors = flatten(layers);
    tensors.insert(tensors.begin(), x0);
    sums_.emplace(
        tensors,
        std::vector<bool>(tensors.size(), is_training),
        /*num_inputs=*/1,
        blocks_.count());
    for (size_t i = 0; i < layers.size(); ++i) {
      transposed_.push_back(transposed(layers[i].u));
      transposed_u_.push_back(matrix_of(transposed_.back()));
      transposed_.push_back(transposed(layers[i].v));
      transposed_v_.push_back(matrix_of(transposed_.back()));
      rank_ = std::max(rank_, layers[i].u.size(1));
    }
  }

  // Returns the gradients in the order of Crosses::forward()'s arguments.
  variable_list run() const {
    const int64_t dim = x0_.columns;
    const at::Tensor x0_gradient = empty_in_step_memory({x0_.rows, dim});
    const MutableMatrix out = mutable_matrix_of(x0_gradient);
    const int64_t size = std::min(part_rows_of(dim), blocks_.size());
    blocks_.for_each([&](int64_t block) {
      const CrossScratch scratch(weights_.size(), size, dim, rank_);
      const int64_t end = blocks_.begin(block) + blocks_.rows(block);
      for (int64_t row = blocks_.begin(block); row < end; row += size) {
        compute_rows(
            block, row, scratch, out.row_range(row, std::min(size, end - row)));
      }
    });
    variable_list result(1 + weights_.size() * (has_bias_ ? 3 : 2));
    sums_->set_sums(result);
    result[0] = x0_gradient;
    return result;
  }

 private:
  size_t place_of(size_t layer) const {
    return 1 + layer * (has_bias_ ? 3 : 2);
  }

  void compute_rows(
      int64_t block,
      int64_t row,
      const CrossScratch& scratch,
      const MutableMatrix& x0_gradient) const {
    const int64_t rows = x0_gradient.rows;
    const ConstMatrix first = x0_.row_range(row, rows);
    std::vector<ConstMatrix> x{first};
    for (size_t i = 0; i < weights_.size(); ++i) {
      kernels::ProductArgs args{.bias = weights_[i].bias};
      if (i + 1 < weights_.size()) {
        const MutableMatrix next = scratch.x(i + 1, rows);
        args.x0 = first.data;
        args.x = x[i].data;
        args.crossed = next.data;
        x.push_back(next);
      }
      multiply(
          projected_[i].row_range(row, rows),
          weights_[i].v,
          scratch.factor(i, rows),
          args);
    }
    for (size_t i = weights_.size(); i-- > 0;) {
      compute_layer(i, block, row, x[i], scratch, x0_gradient);
    }
  }

  // Replaces the gradient of a layer's output in `scratch` by that of its input. The top
  // layer reads the gradient of the result from gradient_ and sets `x0_gradient`. The other
  // layers add to it. The lowest layer also adds the gradient of its input, which is x0.
  void compute_layer(
      size_t layer,
      int64_t block,
      int64_t row,
      const ConstMatrix& x,
      const CrossScratch& scratch,
      const MutableMatrix& x0_gradient) const {
    const int64_t rows = x0_gradient.rows;
    const int64_t dim = x0_gradient.columns;
    const bool is_top = layer + 1 == weights_.size();
    const MutableMatrix x_gradient = scratch.x_gradient(rows);
    const float* gradient =
        is_top ? gradient_.row_range(row, rows).data : x_gradient.data;
    const bool is_first = row == blocks_.begin(block);  // rows of the block
    float* bias_gradient = nullptr;
    if (has_bias_ && is_training_) {
      const MutableMatrix bias = sums_->part(place_of(layer) + 2, block);
      bias_gradient = bias.data;
      if (is_first) {
        std::fill_n(bias.data, bias.columns, 0.0F);
      }
    }
    const MutableMatrix product_gradient = scratch.factor(layer, rows);
    active_kernels().cross_gradient(
        {.rows = rows,
         .dim = dim,
         .x0 = x0_.row_range(row, rows).data,
         .factor = product_gradient.data,
         .gradient = gradient,
         .adds = !is_top,
         .x0_gradient = x0_gradient.data,
         .product_gradient = product_gradient.data,
         .bias_gradient = bias_gradient});
    const MutableMatrix projected_gradient =
        scratch.projected_gradient(rows, transposed_v_[layer].columns);
    multiply(product_gradient, transposed_v_[layer], projected_gradient);
    if (is_training_) {
      const kernels::ProductArgs sum{.adds = !is_first};
      multiply(
          x.transposed(),
          projected_gradient,
          sums_->part(place_of(layer), block),
          sum);
      multiply(
          projected_[layer].row_range(row, rows).transposed(),
          product_gradient,
          sums_->part(place_of(layer) + 1, block),
          sum);
    }
    multiply(
        projected_gradient,
        transposed_u_[layer],
        layer == 0 ? x0_gradient : x_gradient,
        {.adds = layer == 0, .added = gradient});
  }

  RowBlocks blocks_;
  ConstMatrix x0_;
  ConstMatrix gradient_;
  bool has_bias_;
  bool is_training_;
  std::optional<PartialGradients> sums_;
  // The matrices of each layer.
  std::vector<CrossWeights> weights_;
  std::vector<ConstMatrix> projected_;  // x u
  std::vector<at::Tensor> transposed_;  // u and v
  std::vector<ConstMatrix> transposed_u_;
  std::vector<ConstMatrix> transposed_v_;
  int64_t rank_ = 1;
};

struct Crosses : torch::autograd::Function<Crosses> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x0,  // contiguous
      at::TensorList parameters) {
    const std::vector<LowRankCross> layers = unflatten(parameters);
    std::vector<at::Tensor> saved(layers.size());
    const at::Tensor result = compute(x0, layers, saved);
    variable_list saved_tensors{x0};
    saved_tensors.insert(
        saved_tensors.end(), parameters.begin(), parameters.end());
    saved_tensors.insert(saved_tensors.end(), saved.begin(), saved.end());
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
    const bool is_training =
        context->needs_input_grad({torch::autograd::IndexRange(1, 1 + count)});
    // A tensor of zeros may have no memory.
    const at::Tensor gradient = gradients[0]._is_zerotensor()
        ? at::zeros(gradients[0].sizes(), at::kFloat)
        : gradients[0].resolve_neg().contiguous();
    return CrossGradients(
               saved_tensors[0],
               layers,
               {saved_tensors.begin() + 1 + count, saved_tensors.end()},
               gradient,
               is_training)
        .run();
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
  bool has_all = fits(x0, x0.sizes()) && blocks.suffice_for_threads();
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
  std::vector<at::Tensor> none;
  const at::Tensor result = needs_gradient({rows}) || needs_gradient(parameters)
      ? Crosses::apply(rows, at::TensorList(parameters))
      : compute(rows, unflatten(parameters), none);
  return x0.dim() == 2 ? result : result.view(x0.sizes());
}

}  // namespace tessera
