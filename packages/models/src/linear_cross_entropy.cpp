// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/linear_cross_entropy.h>

#include <tessera/layers/input_checks.h>
#include "layers/matrix.h"
#include "layers/row_blocks.h"
#include "src/common/check.h"
#include "src/common/number_in_message.h"
#include "src/common/step_memory.h"
#include "src/tables/active_kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLossName = "linear_cross_entropy";

struct LossAndGradients {
  at::Tensor loss = {};
  at::Tensor states = {};  // undefined if not needed
  at::Tensor rows = {};
};

// Computes the loss, and its gradients if they are needed, chunk by chunk. Each chunk is a
// task and has its own gradient of the rows, so there are few of them.
class SoftmaxPass {
 public:
  SoftmaxPass(
      const at::Tensor& states,
      const at::Tensor& rows,
      const at::Tensor& targets)
      : states_(states),
        transposed_(rows.t().contiguous()),
        states_view_(matrix_of(states)),
        rows_view_(matrix_of(rows)),
        transposed_view_(matrix_of(transposed_)),
        targets_(targets.const_data_ptr<int64_t>()),
        chunks_(
            states.size(0),
            rows_of_chunk(states.size(0)),
            // Products take far longer than their memory traffic.
            rows.size(0) * int64_t{sizeof(float)}) {}

  at::Tensor loss() const {
    return run(nullptr);
  }

  LossAndGradients loss_and_gradients() const {
    LossAndGradients result{.states = empty_in_step_memory(states_.sizes())};
    const at::Tensor parts = empty_in_step_memory(
        {chunks_.count(), classes(), states_view_.columns});
    Outputs outputs{
        .states = mutable_matrix_of(result.states),
        .row_parts = parts.mutable_data_ptr<float>()};
    result.loss = run(&outputs);
    const double count = static_cast<double>(states_.size(0));
    result.states.div_(count);
    result.rows = parts.sum(0).div_(count);
    return result;
  }

 private:
  struct Outputs {
    MutableMatrix states;
    float* row_parts;  // [chunks, classes, dim]
  };

  // It depends on the number of states only, for reproducible results.
  static int64_t rows_of_chunk(int64_t count) {
    constexpr int64_t kMaxChunks = 16;
    const int64_t share = (count + kMaxChunks - 1) / kMaxChunks;
    return (share + kBlock - 1) / kBlock * kBlock;
  }

  int64_t classes() const {
    return rows_view_.rows;
  }

  at::Tensor run(const Outputs* outputs) const {
    std::vector<double> losses(static_cast<size_t>(chunks_.count()));
    chunks_.for_each(
        [&](int64_t chunk) { losses[chunk] = run_chunk(chunk, outputs); });
    double sum = 0.0;
    for (const double loss : losses) {
      sum += loss;
    }
    return at::full(
        {}, sum / static_cast<double>(states_.size(0)), states_.options());
  }

  // Returns the sum of the chunk's losses.
  double run_chunk(int64_t chunk, const Outputs* outputs) const {
    constexpr int64_t kFloats = 16;
    const int64_t stride = (classes() + kFloats - 1) / kFloats * kFloats;
    const at::Tensor memory = empty_in_step_memory({kBlock, stride});
    double loss = 0.0;
    const int64_t end = chunks_.begin(chunk) + chunks_.rows(chunk);
    for (int64_t first = chunks_.begin(chunk); first < end; first += kBlock) {
      const int64_t count = std::min(kBlock, end - first);
      const ConstMatrix states = states_view_.row_range(first, count);
      const MutableMatrix scores{
          memory.mutable_data_ptr<float>(), count, classes(), stride};
      multiply(states, transposed_view_, scores);
      float own[kBlock];
      float log_sums[kBlock];
      for (int64_t i = 0; i < count; ++i) {
        own[i] = scores.data[i * stride + targets_[first + i]];
      }
      active_kernels().softmax(
          {.rows = count,
           .columns = classes(),
           .stride = stride,
           .length = classes(),
           .values = scores.data,
           .log_sums = log_sums});
      for (int64_t i = 0; i < count; ++i) {
        loss += static_cast<double>(log_sums[i]) - own[i];
        scores.data[i * stride + targets_[first + i]] -= 1.0F;
      }
      if (outputs == nullptr) {
        continue;
      }
      multiply(scores, rows_view_, outputs->states.row_range(first, count));
      const int64_t dim = states.columns;
      multiply(
          ConstMatrix(scores).transposed(),
          states,
          matrix_in(
              outputs->row_parts + chunk * classes() * dim, classes(), dim),
          {.adds = first > chunks_.begin(chunk)});
    }
    return loss;
  }

  // The scores of a block stay in the second-level cache for some thousand classes.
  static constexpr int64_t kBlock = 64;

  const at::Tensor& states_;
  at::Tensor transposed_;  // rows as [dim, classes]
  ConstMatrix states_view_;
  ConstMatrix rows_view_;
  ConstMatrix transposed_view_;
  const int64_t* targets_;
  RowBlocks chunks_;
};

at::Tensor loss_by_operators(
    const at::Tensor& states,
    const at::Tensor& rows,
    const at::Tensor& targets) {
  return at::cross_entropy_loss(at::matmul(states, rows.t()), targets);
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& states,
      const at::Tensor& rows,
      const at::Tensor& targets) {
    const LossAndGradients all =
        SoftmaxPass(states, rows, targets).loss_and_gradients();
    context->save_for_backward({states, rows, targets, all.states, all.rows});
    return all.loss;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const variable_list saved = context->get_saved_variables();
    if (!at::GradMode::is_enabled()) {
      return {saved[3] * gradients[0], saved[4] * gradients[0], at::Tensor()};
    }
    // Only the operators support a second derivative.
    const variable_list sources{saved[0], saved[1]};
    variable_list result = torch::autograd::grad(
        {loss_by_operators(saved[0], saved[1], saved[2])},
        sources,
        {gradients[0]},
        /*retain_graph=*/true,
        /*create_graph=*/true,
        /*allow_unused=*/true);
    result.emplace_back();
    return result;
  }
};

void check_matrix(const at::Tensor& matrix, const char* name) {
  check_floating(matrix, name, kLossName);
  TESSERA_CHECK_VALUE(
      matrix.dim() == 2 && matrix.numel() > 0,
      "[linear_cross_entropy] {} must be a matrix of one row or more, but got shape {}. Give it the shape [n, dim].",
      name,
      matrix.sizes());
}

void check_targets(
    const at::Tensor& targets,
    const at::Tensor& states,
    int64_t classes) {
  TESSERA_CHECK_VALUE(
      targets.defined() && targets.dim() == 1 &&
          targets.size(0) == states.size(0),
      "[linear_cross_entropy] targets must have shape [{}], one per state, but got {}. Pass the class of each state.",
      states.size(0),
      targets.defined() ? c10::str("shape ", targets.sizes())
                        : "an undefined tensor");
  TESSERA_CHECK_TYPE(
      targets.scalar_type() == at::kLong || targets.scalar_type() == at::kInt,
      "[linear_cross_entropy] targets must be int32 or int64, but got {}. Convert them with to(torch::kLong).",
      targets.scalar_type());
  const auto lowest = targets.min().item<int64_t>();
  const auto highest = targets.max().item<int64_t>();
  TESSERA_CHECK_INDEX(
      lowest >= 0 && highest < classes,
      "[linear_cross_entropy] targets must be in [0, {}), but got {}. Pass indices of rows.",
      classes,
      lowest < 0 ? lowest : highest);
}

}  // namespace

at::Tensor linear_cross_entropy(
    const at::Tensor& states,
    const at::Tensor& rows,
    const at::Tensor& targets) {
  check_matrix(states, "states");
  check_matrix(rows, "rows");
  TESSERA_CHECK_VALUE(
      states.size(1) == rows.size(1),
      "[linear_cross_entropy] states and rows must have the same dim, but got {} and {}. Project one of them.",
      states.size(1),
      rows.size(1));
  TESSERA_CHECK_TYPE(
      states.scalar_type() == rows.scalar_type(),
      "[linear_cross_entropy] states and rows must have the same dtype, but got {} and {}. Convert one of them with .to().",
      states.scalar_type(),
      rows.scalar_type());
  check_targets(targets, states, rows.size(0));
  const at::Tensor ids = targets.to(at::kLong).contiguous();
  const bool has_gradient = at::GradMode::is_enabled() &&
      (states.requires_grad() || rows.requires_grad());
  at::Tensor loss;
  if (!is_plain_float32(states) || !is_plain_float32(rows) ||
      torch::jit::tracer::isTracing()) {
    loss = loss_by_operators(states, rows, ids);
  } else if (has_gradient) {
    loss =
        LinearCrossEntropy::apply(states.contiguous(), rows.contiguous(), ids);
  } else {
    loss = SoftmaxPass(states.contiguous(), rows.contiguous(), ids).loss();
  }
  TESSERA_CHECK_VALUE(
      std::isfinite(loss.item<double>()),
      "[linear_cross_entropy] the loss must be finite, but it is {}: states or rows have NaN or are too large. Lower the learning rate, or look for a division by 0 in the model.",
      number_in_message(loss.item<double>()));
  return loss;
}

}  // namespace tessera
