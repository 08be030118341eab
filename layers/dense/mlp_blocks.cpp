// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/mlp_blocks.h"

#include "layers/dense/matrix.h"
#include "layers/dense/row_blocks.h"
#include "src/common/step_memory.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// How the tensors of a stack are laid out in one list: the inputs, then the weight and
// perhaps the bias of each layer.
struct Layout {
  size_t inputs = 0;
  bool has_bias = false;
  bool has_relu = false;  // of all layers but the last
  bool has_last_relu = false;

  size_t weight(size_t layer) const {
    return inputs + layer * (has_bias ? 2 : 1);
  }
  size_t bias(size_t layer) const {
    return weight(layer) + 1;
  }
};

struct Stack {
  std::vector<at::Tensor> inputs = {};  // [rows, n] each
  std::vector<DenseLayer> layers = {};

  int64_t rows() const {
    return inputs[0].size(0);
  }
};

Layout layout_of(const Stack& stack) {
  return {
      .inputs = stack.inputs.size(),
      .has_bias = stack.layers[0].bias.defined(),
      .has_relu = stack.layers[0].has_relu,
      .has_last_relu = stack.layers.back().has_relu};
}

variable_list flatten(const Stack& stack) {
  variable_list tensors = stack.inputs;
  for (const DenseLayer& layer : stack.layers) {
    tensors.push_back(layer.weight);
    if (layer.bias.defined()) {
      tensors.push_back(layer.bias);
    }
  }
  return tensors;
}

Stack unflatten(at::TensorList tensors, const Layout& layout) {
  Stack stack{.inputs = tensors.slice(0, layout.inputs).vec()};
  for (size_t i = 0; layout.weight(i) < tensors.size(); ++i) {
    stack.layers.push_back(
        {.weight = tensors[layout.weight(i)],
         .bias = layout.has_bias ? tensors[layout.bias(i)] : at::Tensor(),
         .has_relu = layout.has_relu});
  }
  stack.layers.back().has_relu = layout.has_last_relu;
  return stack;
}

// The size of a block depends only on the sizes of the layers.
RowBlocks blocks_of(int64_t rows, const std::vector<DenseLayer>& layers) {
  int64_t widest = layers[0].weight.size(1);
  int64_t columns = widest;
  int64_t weights = 0;
  for (const DenseLayer& layer : layers) {
    widest = std::max(widest, layer.weight.size(0));
    columns += layer.weight.size(0);
    weights += layer.weight.numel();
  }
  // The widest matrix of a block should stay in the second-level cache. A power of two
  // divides most batch sizes.
  constexpr int64_t kBytes = int64_t{512} * 1024;
  constexpr int64_t kMaxRows = 4 * RowBlocks::kTile;
  const int64_t in_cache = std::clamp<int64_t>(
      kBytes / (widest * int64_t{sizeof(float)}), RowBlocks::kTile, kMaxRows);
  // Each block has its own gradients of the weights. With fewer rows, these gradients would
  // take more memory than the block's activations.
  const int64_t worthwhile = weights / columns;
  constexpr int64_t kTooManyRows = 512;
  if (worthwhile >= kTooManyRows) {
    return RowBlocks::whole(rows, columns * int64_t{sizeof(float)});
  }
  const uint64_t size = std::max(
      std::bit_floor(static_cast<uint64_t>(in_cache)),
      std::bit_ceil(static_cast<uint64_t>(worthwhile)));
  return {rows, static_cast<int64_t>(size), columns * int64_t{sizeof(float)}};
}

// Calls visit(input, first column) for each input of a layer.
template <class Visit>
void for_each_input(const std::vector<ConstMatrix>& inputs, Visit&& visit) {
  int64_t begin = 0;
  for (const ConstMatrix& input : inputs) {
    visit(input, begin);
    begin += input.columns;
  }
}

// Computes the layers for blocks of rows.
class ForwardPass {
 public:
  explicit ForwardPass(const Stack& stack)
      : stack_(stack),
        inputs_(matrices_of(stack.inputs)),
        transposed_(c10::fmap(
            stack.layers,
            [](const auto& layer) { return transposed(layer.weight); })),
        weights_(matrices_of(transposed_)) {}

  // Computes a layer for the rows of a block. `below` is the output of the layer below,
  // which the first layer ignores.
  void compute_layer(
      size_t layer,
      const RowBlocks& blocks,
      int64_t block,
      const ConstMatrix& below,
      const MutableMatrix& out) const {
    if (layer > 0) {
      add_product(layer, below, 0, below.columns, out);
      return;
    }
    for_each_input(inputs_, [&](const ConstMatrix& input, int64_t begin) {
      add_product(
          layer, blocks.part(input, block), begin, weights_[0].rows, out);
    });
  }

 private:
  // Multiplies x, which is a part of the layer's input, by the rows of the weights that
  // belong to it. x begins at column `begin` of the input, which has `width` columns. The
  // first part sets `out`, and the others add to it.
  void add_product(
      size_t layer,
      const ConstMatrix& x,
      int64_t begin,
      int64_t width,
      const MutableMatrix& out) const {
    const at::Tensor& bias = stack_.layers[layer].bias;
    multiply(
        x,
        weights_[layer].row_range(begin, x.columns),
        out,
        {.adds = begin > 0,
         .has_relu =
             stack_.layers[layer].has_relu && begin + x.columns == width,
         .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr});
  }

  const Stack& stack_;
  std::vector<ConstMatrix> inputs_;
  std::vector<at::Tensor> transposed_;  // the weights as [in, out]
  std::vector<ConstMatrix> weights_;  // views of transposed_
};

// Two matrices of a block, which take turns as input and output of a layer.
class Scratch {
 public:
  Scratch(const std::vector<DenseLayer>& layers, int64_t rows) : rows_(rows) {
    int64_t widest = 1;
    for (const DenseLayer& layer : layers) {
      widest = std::max(widest, layer.weight.size(0));
    }
    size_ = rows * widest;
    memory_ = empty_in_step_memory({2 * size_});
  }

  // Returns the next matrix, uninitialized. It overwrites the matrix before the last one.
  MutableMatrix next(int64_t columns) {
    turn_ = 1 - turn_;
    return matrix_in(
        memory_.mutable_data_ptr<float>() + turn_ * size_, rows_, columns);
  }

 private:
  int64_t rows_;
  int64_t size_ = 0;
  int64_t turn_ = 0;
  at::Tensor memory_;
};

// The outputs of the layers, of which the last one is the result. Unless `keeps_all`, the
// others are undefined.
std::vector<at::Tensor> outputs_by_blocks(const Stack& stack, bool keeps_all) {
  const size_t last = stack.layers.size() - 1;
  std::vector<at::Tensor> outputs(last + 1);
  std::vector<MutableMatrix> out(last + 1);
  for (size_t i = keeps_all ? 0 : last; i <= last; ++i) {
    outputs[i] =
        empty_in_step_memory({stack.rows(), stack.layers[i].weight.size(0)});
    out[i] = mutable_matrix_of(outputs[i]);
  }
  const ForwardPass pass(stack);
  const RowBlocks blocks =
      blocks_of(stack.rows(), stack.layers).divided_for_threads();
  blocks.for_each([&](int64_t block) {
    std::optional<Scratch> scratch;
    if (!keeps_all) {
      scratch.emplace(stack.layers, blocks.rows(block));
    }
    MutableMatrix below;
    for (size_t i = 0; i <= last; ++i) {
      const MutableMatrix part = keeps_all || i == last
          ? blocks.part(out[i], block)
          : scratch->next(stack.layers[i].weight.size(0));
      pass.compute_layer(i, blocks, block, below, part);
      below = part;
    }
  });
  return outputs;
}

at::Tensor result_by_operators(const Stack& stack) {
  at::Tensor x = at::cat(stack.inputs, 1);
  for (const DenseLayer& layer : stack.layers) {
    x = at::linear(
        x,
        layer.weight,
        layer.bias.defined() ? std::optional(layer.bias) : std::nullopt);
    x = layer.has_relu ? at::relu(x) : x;
  }
  return x;
}

// The gradient of relu(x), given its output.
void relu_gradient(
    const ConstMatrix& gradient,
    const ConstMatrix& output,
    const MutableMatrix& out) {
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.columns; ++c) {
      const float value = gradient.data[r * gradient.row_stride + c];
      const bool is_zero = output.data[r * output.row_stride + c] <= 0.0F;
      out.data[r * out.row_stride + c] = is_zero ? 0.0F : value;
    }
  }
}

// Computes the gradients of all layers for blocks of rows.
class BackwardPass {
 public:
  // `gradient` is contiguous, and `needed` is in the order of flatten().
  BackwardPass(
      const Stack& stack,
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& gradient,
      const std::vector<bool>& needed)
      : stack_(stack),
        layout_(layout_of(stack)),
        needed_(needed),
        blocks_(blocks_of(stack.rows(), stack.layers)),
        sums_(flatten(stack), needed, layout_.inputs, blocks_.count()),
        gradient_(matrix_of(gradient)),
        inputs_(matrices_of(stack.inputs)),
        outputs_(matrices_of(outputs)) {
    for (const DenseLayer& layer : stack.layers) {
      weights_.push_back(matrix_of(layer.weight));
    }
    // The layers below the first needed gradient have no work.
    const auto first = static_cast<size_t>(
        std::find(needed.begin(), needed.end() - 1, true) - needed.begin());
    lowest_ = first < layout_.inputs
        ? 0
        : (first - layout_.inputs) / (layout_.has_bias ? 2 : 1);
  }

  variable_list run() const {
    variable_list result(needed_.size());
    std::vector<MutableMatrix> input_gradients(layout_.inputs);
    for (size_t i = 0; i < layout_.inputs; ++i) {
      if (needed_[i]) {
        result[i] = empty_in_step_memory(stack_.inputs[i].sizes());
        input_gradients[i] = mutable_matrix_of(result[i]);
      }
    }
    blocks_.for_each([&](int64_t block) {
      Scratch scratch(stack_.layers, blocks_.rows(block));
      const ConstMatrix gradient = to_lowest_layer(block, scratch);
      int64_t begin = 0;
      for (size_t i = 0; i < layout_.inputs; ++i) {
        if (needed_[i]) {
          multiply(
              gradient,
              weights_[0].column_range(begin, inputs_[i].columns),
              blocks_.part(input_gradients[i], block));
        }
        begin += inputs_[i].columns;
      }
    });
    sums_.set_sums(result);
    return result;
  }

 private:
  // Computes the gradients of the parameters down to the lowest layer that has work. Returns
  // the gradient of this layer's output before the relu.
  ConstMatrix to_lowest_layer(int64_t block, Scratch& scratch) const {
    ConstMatrix gradient = blocks_.part(gradient_, block);
    if (layout_.has_last_relu) {
      const MutableMatrix masked = scratch.next(gradient.columns);
      relu_gradient(gradient, blocks_.part(outputs_.back(), block), masked);
      gradient = masked;
    }
    for (size_t i = stack_.layers.size() - 1;; --i) {
      sum_parameters(i, block, gradient);
      if (i == lowest_) {
        return gradient;
      }
      const MutableMatrix below = scratch.next(weights_[i].columns);
      kernels::ProductArgs args;
      if (stack_.layers[i - 1].has_relu) {
        const ConstMatrix output = blocks_.part(outputs_[i - 1], block);
        args.relu_output = output.data;
        args.relu_output_stride = output.row_stride;
      }
      multiply(gradient, weights_[i], below, args);
      gradient = below;
    }
  }

  // Computes the gradients of a layer's parameters from the gradient of the layer's output
  // before the relu.
  void sum_parameters(size_t layer, int64_t block, const ConstMatrix& gradient)
      const {
    if (layout_.has_bias && sums_.has(layout_.bias(layer))) {
      sum_rows(gradient, sums_.part(layout_.bias(layer), block));
    }
    if (!sums_.has(layout_.weight(layer))) {
      return;
    }
    const MutableMatrix sum = sums_.part(layout_.weight(layer), block);
    if (layer > 0) {
      multiply(
          gradient.transposed(), blocks_.part(outputs_[layer - 1], block), sum);
      return;
    }
    for_each_input(inputs_, [&](const ConstMatrix& input, int64_t begin) {
      multiply(
          gradient.transposed(),
          blocks_.part(input, block),
          sum.column_range(begin, input.columns));
    });
  }

  const Stack& stack_;
  Layout layout_;
  const std::vector<bool>& needed_;
  RowBlocks blocks_;
  PartialGradients sums_;
  ConstMatrix gradient_;
  std::vector<ConstMatrix> inputs_;
  std::vector<ConstMatrix> outputs_;  // without the last one if it has no relu
  std::vector<ConstMatrix> weights_;
  size_t lowest_ = 0;
};

struct MLPBlocks : torch::autograd::Function<MLPBlocks> {
  static at::Tensor forward(
      AutogradContext* context,
      at::TensorList tensors,
      const Layout& layout) {
    const std::vector<at::Tensor> outputs =
        outputs_by_blocks(unflatten(tensors, layout), /*keeps_all=*/true);
    variable_list saved = tensors.vec();
    saved.insert(saved.end(), outputs.begin(), outputs.end());
    if (!layout.has_last_relu) {
      saved.pop_back();  // the backward pass does not need the result
    }
    context->save_for_backward(std::move(saved));
    context->saved_data["tensors"] = static_cast<int64_t>(tensors.size());
    context->saved_data["inputs"] = static_cast<int64_t>(layout.inputs);
    context->saved_data["has_bias"] = layout.has_bias;
    context->saved_data["has_relu"] = layout.has_relu;
    context->saved_data["has_last_relu"] = layout.has_last_relu;
    return outputs.back();
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto count =
        static_cast<size_t>(context->saved_data["tensors"].toInt());
    const Layout layout{
        .inputs = static_cast<size_t>(context->saved_data["inputs"].toInt()),
        .has_bias = context->saved_data["has_bias"].toBool(),
        .has_relu = context->saved_data["has_relu"].toBool(),
        .has_last_relu = context->saved_data["has_last_relu"].toBool()};
    const at::TensorList all(saved);
    const at::TensorList tensors = all.slice(0, count);
    const at::Tensor gradient = gradients[0].resolve_neg();
    variable_list result;
    if (at::GradMode::is_enabled() || !is_plain_float32(gradient)) {
      result = gradients_by_operators(
          tensors,
          [&](at::TensorList sources) {
            return result_by_operators(unflatten(sources, layout));
          },
          gradient);
    } else {
      std::vector<bool> needed(count);
      for (size_t i = 0; i < count; ++i) {
        needed[i] = context->needs_input_grad(i);
      }
      const Stack stack = unflatten(tensors, layout);
      result = BackwardPass(
                   stack, all.slice(count).vec(), gradient.contiguous(), needed)
                   .run();
    }
    result.emplace_back();  // the layout has no gradient
    return result;
  }
};

}  // namespace

bool has_mlp_blocks(
    const std::vector<at::Tensor>& inputs,
    const std::vector<DenseLayer>& layers) {
  if (inputs.empty() || layers.empty() || torch::jit::tracer::isTracing()) {
    return false;
  }
  int64_t width = 0;
  for (const at::Tensor& input : inputs) {
    if (!is_plain_float32(input) || input.dim() < 2 || input.numel() == 0) {
      return false;
    }
    width += input.size(-1);
  }
  for (const DenseLayer& layer : layers) {
    if (!is_plain_float32(layer.weight) || layer.weight.dim() != 2 ||
        layer.weight.size(1) != width || layer.weight.numel() == 0) {
      return false;
    }
    width = layer.weight.size(0);
    if (layer.bias.defined() != layers[0].bias.defined() ||
        (layer.bias.defined() &&
         (!is_plain_float32(layer.bias) ||
          layer.bias.sizes() != at::IntArrayRef{width}))) {
      return false;
    }
  }
  const int64_t rows = inputs[0].numel() / inputs[0].size(-1);
  const RowBlocks blocks = blocks_of(rows, layers);
  // Small layers in float32 are about as fast as in bfloat16.
  const bool has_autocast = at::autocast::is_autocast_enabled(at::kCPU);
  return blocks.are_faster() && !(has_autocast && blocks.is_whole());
}

at::Tensor mlp_blocks(
    const std::vector<at::Tensor>& inputs,
    const std::vector<DenseLayer>& layers) {
  Stack stack{.inputs = c10::fmap(inputs, rows_of)};
  for (const DenseLayer& layer : layers) {
    stack.layers.push_back(
        {.weight = layer.weight.contiguous(),
         .bias = layer.bias.defined() ? layer.bias.contiguous() : at::Tensor(),
         .has_relu = layer.has_relu});
  }
  const variable_list tensors = flatten(stack);
  const at::Tensor result = needs_gradient(tensors)
      ? MLPBlocks::apply(at::TensorList(tensors), layout_of(stack))
      : outputs_by_blocks(stack, /*keeps_all=*/false).back();
  return unflatten_rows(result, inputs[0]);
}

}  // namespace tessera
