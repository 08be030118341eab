// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/low_rank_crosses.h"

#include "layers/dense/matrix.h"
#include "layers/dense/row_blocks.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

RowBlocks blocks_of(int64_t rows, const std::vector<LowRankCross>& layers) {
  constexpr int64_t kBytes = int64_t{320} * 1024;
  const int64_t row_bytes = layers[0].u.size(0) * int64_t{sizeof(float)};
  const int64_t tiles =
      std::max<int64_t>(kBytes / row_bytes / RowBlocks::kTile, 1);
  const RowBlocks blocks(rows, tiles * RowBlocks::kTile, row_bytes);
  // With a larger rank, the gradients of the weights of each block would take more memory
  // than the block's activations.
  const bool is_wide =
      std::ranges::any_of(layers, [&](const LowRankCross& layer) {
        return layer.u.size(1) > blocks.size();
      });
  return is_wide ? RowBlocks::whole(rows, row_bytes) : blocks;
}

// The backward pass computes a block in parts of this many rows. It reads and writes the
// gradients of the weights once for each part, so small parts are slow. On Zen 3, the crosses
// of a DCN-v2 (dim 640) took 1.2 to 1.4 times as long with 8 rows, which fit into the
// second-level cache of 512 KiB, and about as long with 128 rows as with 64. On Intel Xeon, 16
// to 64 rows were equally fast. The number changes no bit of the results.
int64_t part_rows_of(int64_t dim) {
  constexpr int64_t kRows = 64;
  constexpr int64_t kFloats = kRows * 640;
  return std::max(kRows, kFloats / dim);
}

at::Tensor result_by_operators(
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

// Returns x0, or memory for it that compute() fills.
at::Tensor make_x0(const variable_list& inputs, int64_t dim) {
  return inputs.size() == 1 ? inputs[0]
                            : empty_in_step_memory({inputs[0].size(0), dim});
}

void copy_rows(const ConstMatrix& from, const MutableMatrix& to) {
  for (int64_t row = 0; row < from.rows; ++row) {
    std::copy_n(
        from.data + row * from.row_stride,
        from.columns,
        to.data + row * to.row_stride);
  }
}

// Computes all layers. Joins several inputs in `x0`. Unless `saved` is empty, it gets two
// tensors of each layer for the backward pass: x_i u_i [rows, rank] and factor_{i+1} [rows, dim].
at::Tensor compute(
    const variable_list& inputs,
    const std::vector<LowRankCross>& layers,
    const at::Tensor& x0,
    variable_list& saved) {
  struct Layer {
    ConstMatrix u;
    ConstMatrix v;
    const float* bias = nullptr;
    MutableMatrix projected = {};  // unless `saved` is empty, like factor
    MutableMatrix factor = {};
  };
  const bool keeps = !saved.empty();
  const int64_t rows = x0.size(0);
  const int64_t dim = x0.size(1);
  int64_t rank = 1;
  std::vector<Layer> stack;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LowRankCross& layer = layers[i];
    stack.push_back(
        {matrix_of(layer.u),
         matrix_of(layer.v),
         layer.bias.defined() ? layer.bias.const_data_ptr<float>() : nullptr});
    rank = std::max(rank, layer.u.size(1));
    if (keeps) {
      saved[2 * i] = empty_in_step_memory({rows, layer.u.size(1)});
      saved[2 * i + 1] = empty_in_step_memory({rows, dim});
      stack[i].projected = mutable_matrix_of(saved[2 * i]);
      stack[i].factor = mutable_matrix_of(saved[2 * i + 1]);
    }
  }
  const at::Tensor result = empty_in_step_memory({rows, dim});
  const std::vector<ConstMatrix> parts = matrices_of(inputs);
  const ConstMatrix first = matrix_of(x0);
  const MutableMatrix joined =
      parts.size() > 1 ? mutable_matrix_of(x0) : MutableMatrix();
  const MutableMatrix out = mutable_matrix_of(result);
  const RowBlocks blocks = blocks_of(rows, layers).divided_for_threads();
  blocks.for_each([&](int64_t block) {
    if (parts.size() > 1) {
      int64_t column = 0;
      for (const ConstMatrix& part : parts) {
        copy_rows(
            blocks.part(part, block),
            blocks.part(joined, block).column_range(column, part.columns));
        column += part.columns;
      }
    }
    const ConstMatrix own_first = blocks.part(first, block);
    const MutableMatrix own_out = blocks.part(out, block);
    at::Tensor memory;
    if (!keeps) {
      memory = empty_in_step_memory({own_out.rows * (dim + rank)});
    }
    const float* factor = nullptr;  // of the layer below
    for (size_t i = 0; i < stack.size(); ++i) {
      // All layers write x to the result. The x of the last layer stays there.
      const ConstMatrix x = i == 0 ? own_first : ConstMatrix(own_out);
      MutableMatrix own_projected;
      MutableMatrix own_factor{.row_stride = dim};
      if (keeps) {
        own_projected = blocks.part(stack[i].projected, block);
        own_factor = blocks.part(stack[i].factor, block);
      } else {
        float* const begin = memory.mutable_data_ptr<float>();
        own_projected =
            matrix_in(begin + x.rows * dim, x.rows, stack[i].u.columns);
        if (i + 1 < stack.size()) {  // no layer needs the last factor
          own_factor.data = begin;
        }
      }
      multiply(x, stack[i].u, own_projected);
      multiply(
          own_projected,
          stack[i].v,
          own_factor,
          {.bias = stack[i].bias,
           .added = factor,
           .x0 = own_first.data,
           .crossed = own_out.data});
      factor = own_factor.data;
    }
  });
  return result;
}

// Computes the gradients for blocks of rows, from the last layer to the first. A layer begins
// with the gradient of factor_{i+1}. Its product with v_i gives the gradient of x_i u_i, and the
// product of that with u_i gives the gradient of x_i, which is then split elementwise into
// the gradients of x0 and factor_i. Two other ways were slower on Zen 3: 64 columns of all
// matrices at a time, which stay in the first-level cache, took 1.01 to 1.04 times as long. Two
// passes, of which the second one has no partial sums of the weights' gradients, took 1.07 to
// 1.18 times as long.
class CrossGradients {
 public:
  // compute() has set `saved`. `gradient` is contiguous. Unless `is_training`, run() computes
  // only the gradient of x0.
  CrossGradients(
      const at::Tensor& x0,
      const std::vector<LowRankCross>& layers,
      at::TensorList saved,
      const at::Tensor& gradient,
      bool is_training)
      : blocks_(blocks_of(x0.size(0), layers)),
        x0_(matrix_of(x0)),
        gradient_(matrix_of(gradient)),
        has_bias_(layers[0].bias.defined()),
        is_training_(is_training),
        sums_(
            flatten(layers),
            std::vector<bool>(
                layers.size() * parameters_per_layer(),
                is_training),
            /*num_inputs=*/0,
            blocks_.count()) {
    for (size_t i = 0; i < layers.size(); ++i) {
      transposed_.push_back(transposed(layers[i].u));
      transposed_.push_back(transposed(layers[i].v));
      layers_.push_back(
          {matrix_of(saved[2 * i]),
           matrix_of(saved[2 * i + 1]),
           matrix_of(transposed_[2 * i]),
           matrix_of(transposed_[2 * i + 1])});
      rank_ = std::max(rank_, layers[i].u.size(1));
    }
  }

  // Returns the gradients of the inputs and of the parameters in the order of flatten().
  variable_list run(at::TensorList inputs) const {
    const int64_t dim = x0_.columns;
    const at::Tensor x0_gradient = empty_in_step_memory({x0_.rows, dim});
    const MutableMatrix out = mutable_matrix_of(x0_gradient);
    const int64_t size = blocks_.is_whole()
        ? blocks_.size()
        : std::min(part_rows_of(dim), blocks_.size());
    blocks_.for_each([&](int64_t block) {
      const at::Tensor memory =
          empty_in_step_memory({size * (2 * dim + rank_)});
      float* const scratch = memory.mutable_data_ptr<float>();
      const int64_t end = blocks_.begin(block) + blocks_.rows(block);
      for (int64_t row = blocks_.begin(block); row < end; row += size) {
        const int64_t rows = std::min(size, end - row);
        compute_rows(
            {.block = block,
             .row = row,
             .rows = rows,
             .x0_gradient = out.row_range(row, rows),
             .factor_gradient = matrix_in(scratch, rows, dim),
             .x = matrix_in(scratch + size * dim, rows, dim),
             .projected_gradient = scratch + 2 * size * dim});
      }
    });
    variable_list parameters(layers_.size() * parameters_per_layer());
    sums_.set_sums(parameters);
    variable_list result;
    int64_t begin = 0;
    for (const at::Tensor& input : inputs) {
      result.push_back(x0_gradient.narrow(1, begin, input.size(1)));
      begin += input.size(1);
    }
    result.insert(result.end(), parameters.begin(), parameters.end());
    return result;
  }

 private:
  struct Layer {
    ConstMatrix projected;
    ConstMatrix factor;  // factor_{i+1}
    ConstMatrix transposed_u;
    ConstMatrix transposed_v;
  };

  // Some rows of a block, and memory for what is computed for them.
  struct Part {
    int64_t block;
    int64_t row;
    int64_t rows;
    MutableMatrix x0_gradient;
    MutableMatrix factor_gradient;
    MutableMatrix x;  // the gradient of x_i, and then x_i
    float* projected_gradient;
  };

  size_t parameters_per_layer() const {
    return has_bias_ ? 3 : 2;
  }
  // The sum of the gradients of a layer's u, v or bias, which have the numbers 0 to 2.
  MutableMatrix sum_of(size_t parameter, size_t layer, int64_t block) const {
    return sums_.part(layer * parameters_per_layer() + parameter, block);
  }
  // nullptr if it is not needed.
  float* sum_of_bias(size_t layer, int64_t block) const {
    return has_bias_ && is_training_ ? sum_of(2, layer, block).data : nullptr;
  }

  void compute_rows(const Part& part) const {
    const bool is_first = part.row == blocks_.begin(part.block);
    if (is_first && has_bias_ && is_training_) {
      for (size_t i = 0; i < layers_.size(); ++i) {
        std::fill_n(sum_of_bias(i, part.block), x0_.columns, 0.0F);
      }
    }
    split_gradient(
        layers_.size(),
        part,
        gradient_.row_range(part.row, part.rows).data,
        /*x=*/nullptr);
    for (size_t i = layers_.size(); i-- > 0;) {
      compute_layer(i, part);
    }
  }

  // For x_i = x0 * factor_i + x0 with i > 0, computes the gradients of x0 and factor_i
  // from `gradient`, the gradient of x_i. If x_i is the result of the last layer, they
  // replace the gradients in `part`. Otherwise, they are added to them. bias_{i-1} has the
  // same gradient as factor_i, summed over the rows, so it is added there, too. Writes x_i
  // to `x`, unless `x` is nullptr.
  void split_gradient(
      size_t i,
      const Part& part,
      const float* gradient,
      float* x) const {
    // With one block, each task has some of its rows, and none has the sum over the rows.
    float* const bias = sum_of_bias(i - 1, part.block);
    const int64_t size = blocks_.is_whole() ? RowBlocks::kTile : part.rows;
    const int64_t dim = x0_.columns;
    run_tasks(
        (part.rows + size - 1) / size,
        4 * part.rows * dim * int64_t{sizeof(float)},
        [&](int64_t task) {
          const int64_t row = task * size;
          active_dense_kernels().cross_gradient(
              {.rows = std::min(size, part.rows - row),
               .dim = dim,
               .x0 = x0_.row_range(part.row + row, size).data,
               .factor =
                   layers_[i - 1].factor.row_range(part.row + row, size).data,
               .gradient = gradient + row * dim,
               .adds = i < layers_.size(),
               .x0_gradient = part.x0_gradient.row_range(row, size).data,
               .factor_gradient =
                   part.factor_gradient.row_range(row, size).data,
               .x = x == nullptr ? nullptr : x + row * dim,
               .bias_gradient = blocks_.is_whole() ? nullptr : bias});
        });
    if (blocks_.is_whole() && bias != nullptr) {
      sum_rows(part.factor_gradient, matrix_in(bias, 1, dim));
    }
  }

  // Replaces the gradient of factor_{i+1} in `part` by the gradient of factor_i, and adds
  // to the gradient of x0.
  void compute_layer(size_t i, const Part& part) const {
    const Layer& layer = layers_[i];
    const ConstMatrix factor_gradient = part.factor_gradient;
    const MutableMatrix projected_gradient = matrix_in(
        part.projected_gradient, part.rows, layer.transposed_v.columns);
    const kernels::ProductArgs sum{
        .adds = part.row != blocks_.begin(part.block)};
    multiply(factor_gradient, layer.transposed_v, projected_gradient);
    if (is_training_) {
      multiply(
          layer.projected.row_range(part.row, part.rows).transposed(),
          factor_gradient,
          sum_of(1, i, part.block),
          sum);
    }
    ConstMatrix x = x0_.row_range(part.row, part.rows);
    if (i == 0) {
      multiply(
          projected_gradient,
          layer.transposed_u,
          part.x0_gradient,
          {.adds = true});
    } else {
      multiply(projected_gradient, layer.transposed_u, part.x);
      split_gradient(i, part, part.x.data, part.x.data);
      x = part.x;
    }
    if (is_training_) {
      multiply(
          x.transposed(), projected_gradient, sum_of(0, i, part.block), sum);
    }
  }

  RowBlocks blocks_;
  ConstMatrix x0_;
  ConstMatrix gradient_;
  bool has_bias_;
  bool is_training_;
  PartialGradients sums_;
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
    const variable_list inputs = tensors.slice(0, num_inputs).vec();
    const at::Tensor x0 = make_x0(inputs, layers[0].u.size(0));
    variable_list saved(2 * layers.size());
    const at::Tensor result = compute(inputs, layers, x0, saved);
    variable_list saved_tensors = tensors.vec();
    saved_tensors.insert(saved_tensors.end(), saved.begin(), saved.end());
    if (num_inputs > 1) {
      saved_tensors.push_back(x0);
    }
    context->save_for_backward(std::move(saved_tensors));
    context->saved_data["tensors"] = static_cast<int64_t>(tensors.size());
    context->saved_data["inputs"] = num_inputs;
    return result;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved_tensors = context->get_saved_variables();
    const size_t count = context->saved_data["tensors"].toInt();
    const size_t num_inputs = context->saved_data["inputs"].toInt();
    const at::TensorList all(saved_tensors);
    const at::TensorList tensors = all.slice(0, count);
    const at::Tensor gradient = gradients[0].resolve_neg();
    variable_list result;
    if (at::GradMode::is_enabled() || !is_plain_float32(gradient)) {
      result = gradients_by_operators(
          tensors,
          [&](at::TensorList sources) {
            return result_by_operators(
                at::cat(sources.slice(0, num_inputs), 1),
                unflatten(sources.slice(num_inputs)));
          },
          gradient);
    } else {
      result = CrossGradients(
                   num_inputs == 1 ? tensors[0] : all.back(),
                   unflatten(tensors.slice(num_inputs)),
                   all.slice(count),
                   gradient.contiguous(),
                   context->needs_input_grad(
                       {torch::autograd::IndexRange(num_inputs, count)}))
                   .run(tensors.slice(0, num_inputs));
    }
    result.emplace_back();  // num_inputs has no gradient
    return result;
  }
};

}  // namespace

bool has_low_rank_crosses(
    const std::vector<at::Tensor>& inputs,
    const std::vector<LowRankCross>& layers) {
  if (inputs.empty() || layers.empty() || torch::jit::tracer::isTracing() ||
      at::autocast::is_autocast_enabled(at::kCPU)) {
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
  bool has_all = true;
  for (const LowRankCross& layer : layers) {
    const int64_t rank = layer.u.size(-1);
    has_all = has_all && fits(layer.u, {dim, rank}) &&
        fits(layer.v, {rank, dim}) &&
        layer.bias.defined() == layers[0].bias.defined() &&
        (!layer.bias.defined() || fits(layer.bias, {dim}));
  }
  return has_all &&
      blocks_of(inputs[0].numel() / inputs[0].size(-1), layers).are_faster();
}

at::Tensor low_rank_crosses(
    const std::vector<at::Tensor>& inputs,
    const std::vector<LowRankCross>& layers) {
  variable_list rows = c10::fmap(inputs, rows_of);
  if (rows.size() == 1) {
    rows[0] = rows[0].contiguous();  // the only input is x0 itself
  }
  variable_list tensors = rows;
  const variable_list parameters = flatten(layers);
  tensors.insert(tensors.end(), parameters.begin(), parameters.end());
  at::Tensor result;
  if (needs_gradient(tensors)) {
    result = Crosses::apply(
        at::TensorList(tensors), static_cast<int64_t>(rows.size()));
  } else {
    variable_list none;
    result = compute(
        rows, unflatten(parameters), make_x0(rows, layers[0].u.size(0)), none);
  }
  return unflatten_rows(result, inputs[0]);
}

}  // namespace tessera
