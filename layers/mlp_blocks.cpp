// SPDX-License-Identifier: Apache-2.0
#include "layers/mlp_blocks.h"

#include "layers/row_blocks.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/threshold_backward.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
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
  // Each block has its own gradients of the weights. With fewer rows, they would take
  // more memory than the block's activations.
  const int64_t worthwhile = weights / columns;
  const uint64_t size = std::max(
      std::bit_floor(static_cast<uint64_t>(in_cache)),
      std::bit_ceil(static_cast<uint64_t>(worthwhile)));
  return {rows, static_cast<int64_t>(size), columns * int64_t{sizeof(float)}};
}

// Calls visit(input, first column, width) for each input of a layer.
template <class Visit>
void for_each_input(const std::vector<at::Tensor>& inputs, Visit&& visit) {
  int64_t begin = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    visit(i, begin, inputs[i].size(1));
    begin += inputs[i].size(1);
  }
}

// Computes one layer for some rows. `transposed` is the weight as [in, out].
void compute_layer(
    const std::vector<at::Tensor>& inputs,
    const DenseLayer& layer,
    const at::Tensor& transposed,
    const at::Tensor& out) {
  bool add = layer.bias.defined();
  if (add) {
    out.copy_(layer.bias);
  }
  for_each_input(inputs, [&](size_t i, int64_t begin, int64_t width) {
    multiply(inputs[i], transposed.narrow(0, begin, width), out, add);
    add = true;
  });
  if (layer.has_relu) {
    out.relu_();
  }
}

// The inputs of a layer for the rows of a block. `outputs` are those of all layers.
std::vector<at::Tensor> inputs_of_layer(
    size_t layer,
    const Stack& stack,
    const std::vector<at::Tensor>& outputs,
    const RowBlocks& blocks,
    int64_t block) {
  std::vector<at::Tensor> parts;
  if (layer > 0) {
    parts.push_back(blocks.part(outputs[layer - 1], block));
    return parts;
  }
  for (const at::Tensor& input : stack.inputs) {
    parts.push_back(blocks.part(input, block));
  }
  return parts;
}

std::vector<at::Tensor> transposed_weights(const Stack& stack) {
  std::vector<at::Tensor> transposed;
  for (const DenseLayer& layer : stack.layers) {
    transposed.push_back(layer.weight.t().contiguous());
  }
  return transposed;
}

// The outputs of all layers. The last one is the result.
std::vector<at::Tensor> outputs_by_blocks(const Stack& stack) {
  std::vector<at::Tensor> outputs;
  for (const DenseLayer& layer : stack.layers) {
    outputs.push_back(
        empty_in_step_memory({stack.rows(), layer.weight.size(0)}));
  }
  const std::vector<at::Tensor> transposed = transposed_weights(stack);
  const RowBlocks blocks = blocks_of(stack.rows(), stack.layers);
  blocks.for_each([&](int64_t block) {
    for (size_t i = 0; i < stack.layers.size(); ++i) {
      compute_layer(
          inputs_of_layer(i, stack, outputs, blocks, block),
          stack.layers[i],
          transposed[i],
          blocks.part(outputs[i], block));
    }
  });
  return outputs;
}

// The result only.
at::Tensor result_by_blocks(const Stack& stack) {
  const size_t last = stack.layers.size() - 1;
  const at::Tensor result =
      empty_in_step_memory({stack.rows(), stack.layers[last].weight.size(0)});
  const std::vector<at::Tensor> transposed = transposed_weights(stack);
  const RowBlocks blocks = blocks_of(stack.rows(), stack.layers);
  blocks.for_each([&](int64_t block) {
    const at::Tensor out = blocks.part(result, block);
    std::vector<at::Tensor> x = inputs_of_layer(0, stack, {}, blocks, block);
    for (size_t i = 0; i < last; ++i) {
      const at::Tensor hidden = at::empty(
          {out.size(0), stack.layers[i].weight.size(0)}, out.options());
      compute_layer(x, stack.layers[i], transposed[i], hidden);
      x = {hidden};
    }
    compute_layer(x, stack.layers[last], transposed[last], out);
  });
  return result;
}

// The gradients in the order of flatten(), computed by operators that support a second
// derivative.
variable_list gradients_by_operators(const Stack& stack, at::Tensor gradient) {
  const Layout layout = layout_of(stack);
  std::vector<at::Tensor> outputs{at::cat(stack.inputs, 1)};
  for (const DenseLayer& layer : stack.layers) {
    const at::Tensor out = at::linear(
        outputs.back(),
        layer.weight,
        layer.bias.defined() ? std::optional(layer.bias) : std::nullopt);
    outputs.push_back(layer.has_relu ? at::relu(out) : out);
  }
  variable_list result(layout.weight(stack.layers.size()));
  for (size_t i = stack.layers.size(); i-- > 0;) {
    const DenseLayer& layer = stack.layers[i];
    if (layer.has_relu) {
      gradient = at::threshold_backward(gradient, outputs[i + 1], 0);
    }
    result[layout.weight(i)] = at::mm(gradient.t(), outputs[i]);
    if (layout.has_bias) {
      result[layout.bias(i)] = gradient.sum(0);
    }
    gradient = at::mm(gradient, layer.weight);
  }
  for_each_input(stack.inputs, [&](size_t i, int64_t begin, int64_t width) {
    result[i] = gradient.narrow(1, begin, width);
  });
  return result;
}

// The gradients of the parameters for each block. They are added in the order of blocks,
// for reproducible results.
class PartialGradients {
 public:
  // `tensors` and `needed` are in the order of flatten().
  PartialGradients(
      const variable_list& tensors,
      const std::vector<bool>& needed,
      size_t num_inputs,
      int64_t blocks)
      : tensors_(tensors), needed_(needed), num_inputs_(num_inputs) {
    int64_t size = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      begins_.push_back(size);
      size += has(i) ? tensors[i].numel() : 0;
    }
    if (size > 0) {
      // at::sum adds the columns that are left after a multiple of 32 in an order that
      // depends on the number of threads.
      constexpr int64_t kColumns = 32;
      const int64_t padded = (size + kColumns - 1) / kColumns * kColumns;
      values_ = empty_in_step_memory({blocks, padded});
      values_.narrow(1, size, padded - size).zero_();
    }
  }

  bool has(size_t tensor) const {
    return tensor >= num_inputs_ && needed_[tensor];
  }

  at::Tensor part(size_t tensor, int64_t block) const {
    return view(values_.select(0, block), tensor);
  }

  // Sets the gradients of the parameters. One sum of all of them starts the threads once.
  void add_to(variable_list& result) const {
    if (!values_.defined()) {
      return;
    }
    const at::Tensor sum = values_.sum(0);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (has(i)) {
        result[i] = view(sum, i);
      }
    }
  }

 private:
  at::Tensor view(const at::Tensor& values, size_t tensor) const {
    return values.narrow(0, begins_[tensor], tensors_[tensor].numel())
        .view(tensors_[tensor].sizes());
  }

  const variable_list& tensors_;
  const std::vector<bool>& needed_;
  size_t num_inputs_;
  std::vector<int64_t> begins_;
  at::Tensor values_;  // [blocks, sum of sizes and some zeros]
};

// The gradients in the order of flatten(), where they are `needed`. `outputs` are those
// of all layers. The last one may be missing if it has no relu.
variable_list gradients_by_blocks(
    const Stack& stack,
    const std::vector<at::Tensor>& outputs,
    const at::Tensor& gradient,
    const std::vector<bool>& needed) {
  const Layout layout = layout_of(stack);
  const variable_list tensors = flatten(stack);
  const std::vector<DenseLayer>& layers = stack.layers;
  const RowBlocks blocks = blocks_of(stack.rows(), layers);
  const PartialGradients sums(tensors, needed, layout.inputs, blocks.count());
  variable_list result(tensors.size());
  for (size_t i = 0; i < layout.inputs; ++i) {
    if (needed[i]) {
      result[i] = empty_in_step_memory(stack.inputs[i].sizes());
    }
  }
  // The layers below the first needed gradient have no work.
  const auto first = static_cast<size_t>(
      std::find(needed.begin(), needed.end(), true) - needed.begin());
  const size_t lowest = first < layout.inputs
      ? 0
      : (first - layout.inputs) / (layout.has_bias ? 2 : 1);

  blocks.for_each([&](int64_t block) {
    at::Tensor out_gradient = blocks.part(gradient, block).contiguous();
    for (size_t i = layers.size(); i-- > lowest;) {
      if (layers[i].has_relu) {
        out_gradient = at::threshold_backward(
            out_gradient, blocks.part(outputs[i], block), 0);
      }
      if (layout.has_bias && sums.has(layout.bias(i))) {
        at::Tensor sum = sums.part(layout.bias(i), block);
        at::sum_out(sum, out_gradient, at::IntArrayRef{0});
      }
      if (sums.has(layout.weight(i))) {
        const at::Tensor transposed = out_gradient.t().contiguous();
        const at::Tensor sum = sums.part(layout.weight(i), block);
        const std::vector<at::Tensor> inputs =
            inputs_of_layer(i, stack, outputs, blocks, block);
        for_each_input(inputs, [&](size_t j, int64_t begin, int64_t width) {
          multiply(transposed, inputs[j], sum.narrow(1, begin, width));
        });
      }
      if (i > lowest) {
        const at::Tensor in_gradient = at::empty(
            {out_gradient.size(0), layers[i].weight.size(1)},
            out_gradient.options());
        multiply(out_gradient, layers[i].weight, in_gradient);
        out_gradient = in_gradient;
      }
    }
    for_each_input(stack.inputs, [&](size_t i, int64_t begin, int64_t width) {
      if (needed[i]) {
        multiply(
            out_gradient,
            layers[0].weight.narrow(1, begin, width),
            blocks.part(result[i], block));
      }
    });
  });
  sums.add_to(result);
  return result;
}

struct MLPBlocks : torch::autograd::Function<MLPBlocks> {
  static at::Tensor forward(
      AutogradContext* context,
      at::TensorList tensors,
      const Layout& layout) {
    const std::vector<at::Tensor> outputs =
        outputs_by_blocks(unflatten(tensors, layout));
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
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const variable_list saved = context->get_saved_variables();
    const auto count =
        static_cast<size_t>(context->saved_data["tensors"].toInt());
    const Layout layout{
        .inputs = static_cast<size_t>(context->saved_data["inputs"].toInt()),
        .has_bias = context->saved_data["has_bias"].toBool(),
        .has_relu = context->saved_data["has_relu"].toBool(),
        .has_last_relu = context->saved_data["has_last_relu"].toBool()};
    const at::TensorList all(saved);
    const Stack stack = unflatten(all.slice(0, count), layout);
    const at::Tensor gradient = gradients[0].resolve_neg();
    variable_list result;
    if (at::GradMode::is_enabled() || !is_plain_float32(gradient) ||
        gradient._is_zerotensor()) {
      result = gradients_by_operators(stack, gradient);
    } else {
      std::vector<bool> needed(count);
      for (size_t i = 0; i < count; ++i) {
        needed[i] = context->needs_input_grad(i);
      }
      result =
          gradients_by_blocks(stack, all.slice(count).vec(), gradient, needed);
    }
    result.emplace_back();  // the layout has no gradient
    return result;
  }
};

// `tensor` as a matrix of rows whose elements are adjacent and that do not overlap.
at::Tensor rows_of(const at::Tensor& tensor) {
  const at::Tensor rows = tensor.reshape({-1, tensor.size(-1)});
  const bool has_rows = (rows.size(1) == 1 || rows.stride(1) == 1) &&
      (rows.size(0) == 1 || rows.stride(0) >= rows.size(1));
  return has_rows ? rows : rows.contiguous();
}

}  // namespace

bool has_mlp_blocks(
    const std::vector<at::Tensor>& inputs,
    const std::vector<DenseLayer>& layers) {
  if (inputs.empty() || layers.empty() || torch::jit::tracer::isTracing() ||
      at::autocast::is_autocast_enabled(at::kCPU)) {
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
  return blocks_of(rows, layers).count() >= thread_count();
}

at::Tensor mlp_blocks(
    const std::vector<at::Tensor>& inputs,
    const std::vector<DenseLayer>& layers) {
  Stack stack;
  for (const at::Tensor& input : inputs) {
    stack.inputs.push_back(rows_of(input));
  }
  for (const DenseLayer& layer : layers) {
    stack.layers.push_back(
        {.weight = layer.weight.contiguous(),
         .bias = layer.bias.defined() ? layer.bias.contiguous() : at::Tensor(),
         .has_relu = layer.has_relu});
  }
  const variable_list tensors = flatten(stack);
  const auto requires_grad = [](const at::Tensor& t) {
    return t.requires_grad();
  };
  const bool has_gradient =
      at::GradMode::is_enabled() && std::ranges::any_of(tensors, requires_grad);
  const at::Tensor result = has_gradient
      ? MLPBlocks::apply(at::TensorList(tensors), layout_of(stack))
      : result_by_blocks(stack);
  if (inputs[0].dim() == 2) {
    return result;
  }
  std::vector<int64_t> shape = inputs[0].sizes().vec();
  shape.back() = result.size(1);
  return result.view(shape);
}

}  // namespace tessera
