// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/dot_interaction.h>

#include <tessera/layers/layer_json.h>  // defines get_config()

#include "layers/dense/joined_inputs.h"
#include "layers/dense/row_blocks.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/tril_indices.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/resource_guard.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t count_of_pairs(int64_t features, const DotInteractionOptions& options) {
  if (options.skip_gather) {
    return features * features;
  }
  return options.self_interaction ? features * (features + 1) / 2
                                  : features * (features - 1) / 2;
}

// The positions of the pairs in the flat matrix [features * features].
at::Tensor positions_of_pairs(
    int64_t features,
    const DotInteractionOptions& options,
    at::Device device) {
  // In a trace, the positions become a constant of the graph.
  const torch::jit::ResourceGuard resume(torch::jit::tracer::pauseTracing());
  const at::Tensor rows_columns = at::tril_indices(
      features,
      features,
      options.self_interaction ? 0 : -1,
      at::device(device).dtype(at::kLong));
  return rows_columns.select(0, 0) * features + rows_columns.select(0, 1);
}

// The number of features in a leaf [batch, dim] or [batch, n, dim].
int64_t count_of_leaf(const at::Tensor& leaf) {
  return leaf.dim() == 2 ? 1 : leaf.size(1);
}

at::Tensor dots_by_operators(
    at::TensorList leaves,
    const DotInteractionOptions& options) {
  const at::Tensor x = joined_features(leaves);
  if (count_of_pairs(x.size(1), options) == 0) {
    // The gradient of x is 0, even if x has infinities.
    return x.flatten(1).narrow(1, 0, 0);
  }
  const at::Tensor dots = at::bmm(x, x.transpose(1, 2));
  return options.skip_gather
      ? dots.tril(options.self_interaction ? 0 : -1).flatten(1)
      : dots.flatten(1).index_select(
            1, positions_of_pairs(x.size(1), options, x.device()));
}

// The kernels take float32 on the CPU. A trace can't record them.
bool has_kernel(at::TensorList leaves, const DotInteractionOptions& options) {
  return !options.skip_gather && !torch::jit::tracer::isTracing() &&
      std::ranges::all_of(leaves, [](const at::Tensor& leaf) {
        return leaf.is_cpu() && leaf.numel() > 0 && !leaf.is_neg() &&
            leaf.scalar_type() == at::kFloat &&
            (leaf.size(-1) == 1 || leaf.stride(-1) == 1);
      });
}

template <class Float>
std::vector<kernels::FeatureRows<Float>> rows_of_features(
    at::TensorList leaves) {
  std::vector<kernels::FeatureRows<Float>> rows;
  for (const at::Tensor& leaf : leaves) {
    Float* first = nullptr;
    if constexpr (std::is_const_v<Float>) {
      first = leaf.const_data_ptr<float>();
    } else {
      first = leaf.mutable_data_ptr<float>();
    }
    for (int64_t i = 0; i < count_of_leaf(leaf); ++i) {
      rows.push_back({first + i * leaf.stride(1), leaf.stride(0)});
    }
  }
  return rows;
}

// Runs the kernel on all threads. Each task computes some of the examples. On one core of
// Zen 3, forward and backward of 2048 examples with 27 features of width 64 took 11 to 15 ms
// with the kernel, and 21 to 32 ms with operators.
void run_kernel(
    void (*kernel)(const kernels::PairwiseDotsArgs&),
    const kernels::PairwiseDotsArgs& args,
    int64_t batch) {
  const int64_t bytes = batch * args.num_features *
      (args.num_features + args.dim) * int64_t{sizeof(float)};
  // A kernel computes up to 16 examples at once. A smaller task would leave lanes unused.
  const int64_t examples =
      task_size(batch, bytes, /*smallest=*/16, /*largest=*/32);
  run_tasks((batch + examples - 1) / examples, bytes, [&](int64_t task) {
    kernels::PairwiseDotsArgs part = args;
    part.begin_example = task * examples;
    part.end_example = std::min(part.begin_example + examples, batch);
    kernel(part);
  });
}

at::Tensor dots_by_kernel(
    at::TensorList leaves,
    const DotInteractionOptions& options) {
  const auto features = rows_of_features<const float>(leaves);
  const auto count = static_cast<int64_t>(features.size());
  const int64_t batch = leaves[0].size(0);
  at::Tensor dots =
      empty_in_step_memory({batch, count_of_pairs(count, options)});
  run_kernel(
      active_dense_kernels().pairwise_dots,
      {.features = features.data(),
       .num_features = count,
       .dim = leaves[0].size(-1),
       .with_self = options.self_interaction,
       .dots = dots.mutable_data_ptr<float>()},
      batch);
  return dots;
}

std::vector<at::Tensor> gradients_by_kernel(
    at::TensorList leaves,
    const at::Tensor& gradient,
    const DotInteractionOptions& options) {
  const auto gradients = c10::fmap(leaves, [](const at::Tensor& leaf) {
    return empty_in_step_memory(leaf.sizes());
  });
  const auto features = rows_of_features<const float>(leaves);
  const auto outputs = rows_of_features<float>(gradients);
  const at::Tensor dots =
      gradient.stride(1) == 1 ? gradient : gradient.contiguous();
  run_kernel(
      active_dense_kernels().pairwise_dots_gradient,
      {.features = features.data(),
       .num_features = static_cast<int64_t>(features.size()),
       .dim = leaves[0].size(-1),
       .with_self = options.self_interaction,
       .dots_gradient = {dots.const_data_ptr<float>(), dots.stride(0)},
       .gradients = outputs.data()},
      leaves[0].size(0));
  return gradients;
}

struct PairwiseDots : torch::autograd::Function<PairwiseDots> {
  static at::Tensor forward(
      AutogradContext* context,
      at::TensorList leaves,  // [batch, dim] or [batch, n, dim] each
      const DotInteractionOptions& options) {
    // Without autocast, kernels, operators and the backward pass use one dtype.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    context->save_for_backward(leaves.vec());
    context->saved_data["self_interaction"] = options.self_interaction;
    context->saved_data["skip_gather"] = options.skip_gather;
    return has_kernel(leaves, options) ? dots_by_kernel(leaves, options)
                                       : dots_by_operators(leaves, options);
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list leaves = context->get_saved_variables();
    const DotInteractionOptions options{
        .self_interaction = context->saved_data["self_interaction"].toBool(),
        .skip_gather = context->saved_data["skip_gather"].toBool()};
    // Only the operators support a second derivative.
    const bool uses_kernel = has_kernel(leaves, options) &&
        gradients[0].numel() > 0 && !at::GradMode::is_enabled();
    variable_list result = uses_kernel
        ? gradients_by_kernel(leaves, gradients[0], options)
        : gradients_by_operators(
              leaves,
              [&](at::TensorList sources) {
                return dots_by_operators(sources, options);
              },
              gradients[0]);
    result.emplace_back();  // the options have no gradient
    return result;
  }
};

}  // namespace

Nest<PartialShape> DotInteractionImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  const PartialShape shape = shape_of_features(input_shapes, kClassName);
  return PartialShape{
      shape[0],
      shape[1] ? std::optional(count_of_pairs(*shape[1], options()))
               : std::nullopt};
}

at::Tensor DotInteractionImpl::forward(const Nest<at::Tensor>& features) {
  const std::vector<at::Tensor> leaves =
      with_equal_batches(checked_features(features, kClassName));
  build_on_first_call(features);
  return PairwiseDots::apply(at::TensorList(leaves), options());
}

}  // namespace tessera
