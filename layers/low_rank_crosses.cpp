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
#include <ATen/ops/cat.h>
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

// The gradients of x0 and of the parameters in the order of flatten(), computed by operators
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

// Writes the rows of the inputs beside each other.
void join_rows(
    const std::vector<ConstMatrix>& inputs,
    const MutableMatrix& out) {
  float* begin = out.data;
  for (const ConstMatrix& input : inputs) {
    for (int64_t row = 0; row < input.rows; ++row) {
      std::copy_n(
          input.data + row * input.row_stride,
          input.columns,
          begin + row * out.row_stride);
    }
    begin += input.columns;
  }
}

// What the forward pass keeps of a layer for the backward pass.
struct SavedCross {
  at::Tensor projected;  // x_i u_i: [rows, rank]
  at::Tensor scale;  // scale_{i+1}: [rows, dim]
};

// Returns what is added to the first layer's x u v: its bias, and scale_0.
at::Tensor first_bias_of(const LowRankCross& layer, int64_t dim) {
  at::Tensor sum = empty_in_step_memory({dim});
  float* const values = sum.mutable_data_ptr<float>();
  const float* const bias =
      layer.bias.defined() ? layer.bias.const_data_ptr<float>() : nullptr;
  for (int64_t i = 0; i < dim; ++i) {
    values[i] = 1.0F + (bias == nullptr ? 0.0F : bias[i]);
  }
  return sum;
}

struct Crossed {
  at::Tensor x0;  // contiguous
  at::Tensor result;
};

// Computes all layers. If `saved` has a place for each layer, it is set.
Crossed compute(
    const std::vector<at::Tensor>& inputs,
    const std::vector<LowRankCross>& layers,
    std::vector<SavedCross>& saved) {
  const int64_t rows = inputs[0].size(0);
  const int64_t dim = layers[0].u.size(0);
  std::vector<CrossWeights> weights = weights_of(layers);
  const at::Tensor first_bias = first_bias_of(layers[0], dim);
  weights[0].bias = first_bias.const_data_ptr<float>();
  int64_t rank = 1;
  std::vector<MutableMatrix> projected(layers.size());
  std::vector<MutableMatrix> scales(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    rank = std::max(rank, weights[i].u.columns);
    if (!saved.empty()) {
      saved[i] = {
          empty_in_step_memory({rows, weights[i].u.columns}),
          empty_in_step_memory({rows, dim})};
      projected[i] = mutable_matrix_of(saved[i].projected);
      scales[i] = mutable_matrix_of(saved[i].scale);
    }
  }
  const bool joins = inputs.size() > 1;
  const at::Tensor x0 =
      joins ? empty_in_step_memory({rows, dim}) : inputs[0].contiguous();
  const at::Tensor result = empty_in_step_memory({rows, dim});
  const std::vector<ConstMatrix> input_matrices = matrices_of(inputs);
  const ConstMatrix first = matrix_of(x0);
  const MutableMatrix joined = joins ? mutable_matrix_of(x0) : MutableMatrix();
  const MutableMatrix out = mutable_matrix_of(result);
  const RowBlocks blocks = blocks_of(rows, dim).divided_for_threads();
  blocks.for_each([&](int64_t block) {
    if (joins) {
      std::vector<ConstMatrix> own_inputs;
      for (const ConstMatrix& input : input_matrices) {
        own_inputs.push_back(blocks.part(input, block));
      }
      join_rows(own_inputs, blocks.part(joined, block));
    }
    const ConstMatrix own_first = blocks.part(first, block);
    const MutableMatrix own_out = blocks.part(out, block);
    at::Tensor memory;
    if (saved.empty()) {
      memory = empty_in_step_memory({own_out.rows * (rank + dim)});
    }
    const float* scale = nullptr;
    for (size_t i = 0; i < layers.size(); ++i) {
      // All layers write x to the result. The last one stays there.
      const ConstMatrix x = i == 0 ? own_first : ConstMatrix(own_out);
      MutableMatrix own_projected;
      MutableMatrix own_scale;
      if (saved.empty()) {
        float* const begin = memory.mutable_data_ptr<float>();
        own_scale = matrix_in(begin, x.rows, dim);
        own_projected =
            matrix_in(begin + x.rows * dim, x.rows, weights[i].u.columns);
      } else {
        own_scale = blocks.part(scales[i], block);
        own_projected = blocks.part(projected[i], block);
      }
      multiply(x, weights[i].u, own_projected);
      multiply(
          own_projected,
          weights[i].v,
          own_scale,
          {.bias = weights[i].bias,
           .added = scale,
           .x0 = own_first.data,
           .crossed = own_out.data});
      scale = own_scale.data;
    }
  });
  return {x0, result};
}

// Memory for the matrices that the backward pass computes for some rows.
class CrossScratch {
 public:
  CrossScratch(int64_t rows, int64_t dim, int64_t rank)
      : rows_(rows),
        dim_(dim),
        memory_(empty_in_step_memory({rows * (2 * dim + rank)})) {}

  MutableMatrix scale_gradient(int64_t rows) const {
    return matrix_in(begin(0), rows, dim_);
  }
  // The gradient of x_i, and then x_i.
  MutableMatrix x(int64_t rows) const {
    return matrix_in(begin(1), rows, dim_);
  }
  MutableMatrix projected_gradient(int64_t rows, int64_t rank) const {
    return matrix_in(begin(2), rows, rank);
  }

 private:
  float* begin(int64_t matrix) const {
    return memory_.mutable_data_ptr<float>() + matrix * rows_ * dim_;
  }

  int64_t rows_;
  int64_t dim_;
  at::Tensor memory_;
};

// Computes the gradients for blocks of rows. Of a layer, the gradient of scale_{i+1} is known
// first. That of x_i u_i follows by a product with v_i, and that of x_i by one with u_i. From
// the gradient of x_i, those of x0 and scale_i follow elementwise. Two other ways were slower
// on Zen 3: 64 columns of all matrices at a time, which stay in the first-level cache, took
// 1.01 to 1.04 times as long. Two passes, of which the second one has no partial sums of the
// weights' gradients, took 1.07 to 1.18 times as long.
class CrossGradients {
 public:
  // `gradient` is contiguous. Unless `is_training`, run() computes only the gradient of x0.
  CrossGradients(
      const at::Tensor& x0,
      const std::vector<LowRankCross>& layers,
      const std::vector<SavedCross>& saved,
      const at::Tensor& gradient,
      bool is_training)
      : blocks_(blocks_of(x0.size(0), x0.size(1))),
        x0_(matrix_of(x0)),
        gradient_(matrix_of(gradient)),
        has_bias_(layers[0].bias.defined()),
        is_training_(is_training) {
    variable_list tensors = flatten(layers);
    tensors.insert(tensors.begin(), x0);
    sums_.emplace(
        tensors,
        std::vector<bool>(tensors.size(), is_training),
        /*num_inputs=*/1,
        blocks_.count());
    for (size_t i = 0; i < layers.size(); ++i) {
      transposed_.push_back(transposed(layers[i].u));
      transposed_.push_back(transposed(layers[i].v));
      layers_.push_back(
          {matrix_of(saved[i].projected),
           matrix_of(saved[i].scale),
           matrix_of(transposed_[2 * i]),
           matrix_of(transposed_[2 * i + 1])});
      rank_ = std::max(rank_, layers[i].u.size(1));
    }
  }

  // Returns the gradients of x0 and of the parameters in the order of flatten().
  variable_list run() const {
    const int64_t dim = x0_.columns;
    const at::Tensor x0_gradient = empty_in_step_memory({x0_.rows, dim});
    const MutableMatrix out = mutable_matrix_of(x0_gradient);
    const int64_t size = std::min(part_rows_of(dim), blocks_.size());
    blocks_.for_each([&](int64_t block) {
      const CrossScratch scratch(size, dim, rank_);
      const int64_t end = blocks_.begin(block) + blocks_.rows(block);
      for (int64_t row = blocks_.begin(block); row < end; row += size) {
        compute_rows(
            block, row, scratch, out.row_range(row, std::min(size, end - row)));
      }
    });
    variable_list result(1 + layers_.size() * (has_bias_ ? 3 : 2));
    sums_->set_sums(result);
    result[0] = x0_gradient;
    return result;
  }

 private:
  struct Layer {
    ConstMatrix projected;
    ConstMatrix scale;  // scale_{i+1}
    ConstMatrix transposed_u;
    ConstMatrix transposed_v;
  };

  size_t place_of(size_t layer) const {
    return 1 + layer * (has_bias_ ? 3 : 2);
  }

  void compute_rows(
      int64_t block,
      int64_t row,
      const CrossScratch& scratch,
      const MutableMatrix& x0_gradient) const {
    const bool is_first = row == blocks_.begin(block);  // rows of the block
    if (has_bias_ && is_training_ && is_first) {
      for (size_t i = 0; i < layers_.size(); ++i) {
        const MutableMatrix bias = sums_->part(place_of(i) + 2, block);
        std::fill_n(bias.data, bias.columns, 0.0F);
      }
    }
    const ConstMatrix gradient = gradient_.row_range(row, x0_gradient.rows);
    add_gradients_of_x(
        layers_.size(),
        block,
        row,
        gradient.data,
        nullptr,
        scratch,
        x0_gradient);
    for (size_t i = layers_.size(); i-- > 0;) {
      compute_layer(i, block, row, scratch, x0_gradient);
    }
  }

  // Adds the gradients of x0 and scale_i in x_i = x0 * scale_i, where i > 0. They are the first
  // ones for the result. The gradient of bias_{i-1} is that of scale_i. Sets x unless nullptr.
  void add_gradients_of_x(
      size_t i,
      int64_t block,
      int64_t row,
      const float* gradient,
      float* x,
      const CrossScratch& scratch,
      const MutableMatrix& x0_gradient) const {
    const int64_t rows = x0_gradient.rows;
    active_kernels().cross_gradient(
        {.rows = rows,
         .dim = x0_gradient.columns,
         .x0 = x0_.row_range(row, rows).data,
         .scale = layers_[i - 1].scale.row_range(row, rows).data,
         .gradient = gradient,
         .adds = i < layers_.size(),
         .x0_gradient = x0_gradient.data,
         .scale_gradient = scratch.scale_gradient(rows).data,
         .x = x,
         .bias_gradient = has_bias_ && is_training_
             ? sums_->part(place_of(i - 1) + 2, block).data
             : nullptr});
  }

  // Replaces the gradient of scale_{i+1} in `scratch` by that of scale_i, and adds to that of
  // x0.
  void compute_layer(
      size_t i,
      int64_t block,
      int64_t row,
      const CrossScratch& scratch,
      const MutableMatrix& x0_gradient) const {
    const Layer& layer = layers_[i];
    const int64_t rows = x0_gradient.rows;
    const ConstMatrix scale_gradient = scratch.scale_gradient(rows);
    const MutableMatrix projected_gradient =
        scratch.projected_gradient(rows, layer.transposed_v.columns);
    const kernels::ProductArgs sum{.adds = row != blocks_.begin(block)};
    multiply(scale_gradient, layer.transposed_v, projected_gradient);
    if (is_training_) {
      multiply(
          layer.projected.row_range(row, rows).transposed(),
          scale_gradient,
          sums_->part(place_of(i) + 1, block),
          sum);
    }
    ConstMatrix x = x0_.row_range(row, rows);
    if (i == 0) {
      multiply(
          projected_gradient, layer.transposed_u, x0_gradient, {.adds = true});
    } else {
      const MutableMatrix x_gradient = scratch.x(rows);
      multiply(projected_gradient, layer.transposed_u, x_gradient);
      add_gradients_of_x(
          i,
          block,
          row,
          x_gradient.data,
          x_gradient.data,
          scratch,
          x0_gradient);
      x = x_gradient;
    }
    if (is_training_) {
      multiply(
          x.transposed(),
          projected_gradient,
          sums_->part(place_of(i), block),
          sum);
    }
  }

  RowBlocks blocks_;
  ConstMatrix x0_;
  ConstMatrix gradient_;
  bool has_bias_;
  bool is_training_;
  std::optional<PartialGradients> sums_;
  std::vector<at::Tensor> transposed_;  // u and v of each layer
  std::vector<Layer> layers_;
  int64_t rank_ = 1;
};

struct Crosses : torch::autograd::Function<Crosses> {
  // `tensors` are the inputs, and then the parameters.
  static at::Tensor forward(
      AutogradContext* context,
      at::TensorList tensors,
      int64_t num_inputs) {
    const std::vector<LowRankCross> layers =
        unflatten(tensors.slice(num_inputs));
    std::vector<SavedCross> saved(layers.size());
    const Crossed crossed =
        compute(tensors.slice(0, num_inputs).vec(), layers, saved);
    variable_list saved_tensors = tensors.vec();
    saved_tensors.push_back(crossed.x0);
    for (const SavedCross& layer : saved) {
      saved_tensors.insert(saved_tensors.end(), {layer.projected, layer.scale});
    }
    context->save_for_backward(std::move(saved_tensors));
    context->saved_data["tensors"] = static_cast<int64_t>(tensors.size());
    context->saved_data["inputs"] = num_inputs;
    return crossed.result;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved_tensors = context->get_saved_variables();
    const size_t count = context->saved_data["tensors"].toInt();
    const size_t num_inputs = context->saved_data["inputs"].toInt();
    const at::TensorList all(saved_tensors);
    const at::TensorList inputs = all.slice(0, num_inputs);
    const std::vector<LowRankCross> layers =
        unflatten(all.slice(num_inputs, count - num_inputs));
    variable_list result;
    if (at::GradMode::is_enabled()) {
      const at::Tensor x0 = num_inputs == 1 ? inputs[0] : at::cat(inputs, 1);
      result = gradients_by_operators(x0, layers, gradients[0]);
    } else {
      result = gradients_by_blocks(
          saved_tensors[count],
          layers,
          all.slice(count + 1),
          gradients[0],
          context->needs_input_grad(
              {torch::autograd::IndexRange(num_inputs, count)}));
    }
    if (num_inputs > 1) {
      variable_list parts;
      int64_t begin = 0;
      for (const at::Tensor& input : inputs) {
        parts.push_back(result[0].narrow(1, begin, input.size(1)));
        begin += input.size(1);
      }
      parts.insert(parts.end(), result.begin() + 1, result.end());
      result = std::move(parts);
    }
    result.emplace_back();  // num_inputs has no gradient
    return result;
  }

 private:
  static variable_list gradients_by_blocks(
      const at::Tensor& x0,
      const std::vector<LowRankCross>& layers,
      at::TensorList saved_tensors,
      const at::Tensor& given_gradient,
      bool is_training) {
    std::vector<SavedCross> saved;
    for (size_t i = 0; i < saved_tensors.size(); i += 2) {
      saved.push_back({saved_tensors[i], saved_tensors[i + 1]});
    }
    // A tensor of zeros may have no memory.
    const at::Tensor gradient = given_gradient._is_zerotensor()
        ? at::zeros(given_gradient.sizes(), at::kFloat)
        : given_gradient.resolve_neg().contiguous();
    return CrossGradients(x0, layers, saved, gradient, is_training).run();
  }
};

}  // namespace

bool has_low_rank_crosses(
    const std::vector<at::Tensor>& inputs,
    const std::vector<LowRankCross>& layers) {
  if (inputs.empty() || layers.empty() || torch::jit::tracer::isTracing()) {
    return false;
  }
  int64_t dim = 0;
  for (const at::Tensor& input : inputs) {
    if (!is_plain_float32(input) || input.dim() < 2 || input.numel() == 0) {
      return false;
    }
    dim += input.size(-1);
  }
  const auto fits = [](const at::Tensor& tensor, at::IntArrayRef shape) {
    return is_plain_float32(tensor) && tensor.sizes() == shape;
  };
  const RowBlocks blocks =
      blocks_of(inputs[0].numel() / inputs[0].size(-1), dim);
  bool has_all = blocks.suffice_for_threads();
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
    const std::vector<at::Tensor>& inputs,
    const std::vector<LowRankCross>& layers) {
  variable_list tensors;
  for (const at::Tensor& input : inputs) {
    tensors.push_back(rows_of(input));
  }
  const variable_list parameters = flatten(layers);
  tensors.insert(tensors.end(), parameters.begin(), parameters.end());
  const auto num_inputs = static_cast<int64_t>(inputs.size());
  std::vector<SavedCross> none;
  const at::Tensor result = needs_gradient(tensors)
      ? Crosses::apply(at::TensorList(tensors), num_inputs)
      : compute(
            {tensors.begin(), tensors.begin() + num_inputs},
            unflatten(parameters),
            none)
            .result;
  if (inputs[0].dim() == 2) {
    return result;
  }
  std::vector<int64_t> shape = inputs[0].sizes().vec();
  shape.back() = result.size(1);
  return result.view(shape);
}

}  // namespace tessera
