// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/linear_cross_entropy.h>

#include <tessera/layers/input_checks.h>
#include <tessera/models/sampled_losses.h>
#include "layers/dense/row_blocks.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"
#include "src/common/step_memory.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The inputs of one of the two losses. linear_cross_entropy() has targets. The sampled
// loss has positives, and the ids of positives and negatives. Its rows are the negatives.
struct Inputs {
  at::Tensor states = {};
  at::Tensor rows = {};
  at::Tensor targets = {};
  at::Tensor positives = {};
  at::Tensor positive_ids = {};
  at::Tensor negative_ids = {};

  bool is_sampled() const {
    return positives.defined();
  }
};

struct LossAndGradients {
  at::Tensor loss = {};
  at::Tensor states = {};
  at::Tensor rows = {};
  at::Tensor positives = {};  // undefined if there are none
};

// Computes the loss, and its gradients if they are needed, chunk by chunk. Each chunk is a
// task and has its own gradient of the rows, so there are few chunks.
class SoftmaxPass {
 public:
  explicit SoftmaxPass(const Inputs& inputs)
      : inputs_(inputs),
        transposed_(inputs.rows.t().contiguous()),
        states_(matrix_of(inputs.states)),
        rows_(matrix_of(inputs.rows)),
        transposed_view_(matrix_of(transposed_)),
        targets_(
            inputs.is_sampled() ? nullptr
                                : inputs.targets.const_data_ptr<int64_t>()),
        chunks_(
            states_.rows,
            rows_of_chunk(states_.rows),
            // Counts the scores, because the products take longer than reading the state.
            rows_.rows * int64_t{sizeof(float)}) {}

  at::Tensor loss() const {
    return run(nullptr);
  }

  LossAndGradients loss_and_gradients() const {
    LossAndGradients result{
        .states = empty_in_step_memory(inputs_.states.sizes())};
    const at::Tensor parts =
        empty_in_step_memory({chunks_.count(), classes(), states_.columns});
    Outputs outputs{
        .states = mutable_matrix_of(result.states),
        .row_parts = parts.mutable_data_ptr<float>()};
    if (inputs_.is_sampled()) {
      result.positives = empty_in_step_memory(inputs_.states.sizes());
      outputs.positives = result.positives.mutable_data_ptr<float>();
    }
    result.loss = run(&outputs);
    const double count = static_cast<double>(states_.rows);
    result.states.div_(count);
    result.rows = parts.sum(0).div_(count);
    if (inputs_.is_sampled()) {
      result.positives.div_(count);
    }
    return result;
  }

 private:
  struct Outputs {
    MutableMatrix states;
    float* row_parts = nullptr;  // [chunks, classes, dim]
    float* positives = nullptr;  // [n, dim]; nullptr: none
  };

  // The size depends on the number of states only, so that results are reproducible.
  static int64_t rows_of_chunk(int64_t count) {
    constexpr int64_t kMaxChunks = 16;
    const int64_t share = (count + kMaxChunks - 1) / kMaxChunks;
    return (share + kBlock - 1) / kBlock * kBlock;
  }

  int64_t classes() const {
    return rows_.rows;
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
        {}, sum / static_cast<double>(states_.rows), inputs_.states.options());
  }

  // The column of the target's score.
  int64_t target_of(int64_t state) const {
    return inputs_.is_sampled() ? classes() : targets_[state];
  }

  const float* state(int64_t i) const {
    return states_.data + i * states_.columns;
  }
  const float* positive(int64_t i) const {
    return inputs_.positives.const_data_ptr<float>() + i * states_.columns;
  }

  // Writes the score of the positive item after the scores of the negatives, and leaves
  // out accidental hits: negatives that have the id of the positive item.
  void complete_scores(int64_t i, float* scores) const {
    float score = 0.0F;
    for (int64_t d = 0; d < states_.columns; ++d) {
      score += state(i)[d] * positive(i)[d];
    }
    scores[classes()] = score;
    const int64_t own = inputs_.positive_ids.const_data_ptr<int64_t>()[i];
    const auto* ids = inputs_.negative_ids.const_data_ptr<int64_t>();
    for (int64_t c = 0; c < classes(); ++c) {
      if (ids[c] == own) {
        scores[c] = -std::numeric_limits<float>::infinity();
      }
    }
  }

  // Adds the gradients that pass through the score of the positive item. `gradient` is the
  // gradient of this score.
  void add_positive(int64_t i, float gradient, const Outputs& outputs) const {
    float* state_gradient = outputs.states.data + i * outputs.states.row_stride;
    float* own_gradient = outputs.positives + i * states_.columns;
    for (int64_t d = 0; d < states_.columns; ++d) {
      state_gradient[d] += gradient * positive(i)[d];
      own_gradient[d] = gradient * state(i)[d];
    }
  }

  // Returns the sum of the chunk's losses.
  double run_chunk(int64_t chunk, const Outputs* outputs) const {
    constexpr int64_t kFloats = 16;
    const int64_t width = classes() + (inputs_.is_sampled() ? 1 : 0);
    const int64_t stride = (width + kFloats - 1) / kFloats * kFloats;
    const at::Tensor memory = empty_in_step_memory({kBlock, stride});
    double loss = 0.0;
    const int64_t end = chunks_.begin(chunk) + chunks_.rows(chunk);
    for (int64_t first = chunks_.begin(chunk); first < end; first += kBlock) {
      const int64_t count = std::min(kBlock, end - first);
      const ConstMatrix states = states_.row_range(first, count);
      const MutableMatrix scores{
          memory.mutable_data_ptr<float>(), count, classes(), stride};
      multiply(states, transposed_view_, scores);
      float own[kBlock];
      float log_sums[kBlock];
      for (int64_t i = 0; i < count; ++i) {
        float* row = scores.data + i * stride;
        if (inputs_.is_sampled()) {
          complete_scores(first + i, row);
        }
        own[i] = row[target_of(first + i)];
      }
      active_dense_kernels().softmax(
          {.rows = count,
           .columns = width,
           .stride = stride,
           .length = width,
           .values = scores.data,
           .log_sums = log_sums});
      for (int64_t i = 0; i < count; ++i) {
        loss += static_cast<double>(log_sums[i]) - own[i];
        scores.data[i * stride + target_of(first + i)] -= 1.0F;
      }
      if (outputs == nullptr) {
        continue;
      }
      multiply(scores, rows_, outputs->states.row_range(first, count));
      const int64_t dim = states.columns;
      multiply(
          ConstMatrix(scores).transposed(),
          states,
          matrix_in(
              outputs->row_parts + chunk * classes() * dim, classes(), dim),
          {.adds = first > chunks_.begin(chunk)});
      if (inputs_.is_sampled()) {
        for (int64_t i = 0; i < count; ++i) {
          add_positive(
              first + i, scores.data[i * stride + classes()], *outputs);
        }
      }
    }
    return loss;
  }

  // The scores of a block stay in the second-level cache for some thousand classes.
  static constexpr int64_t kBlock = 64;

  const Inputs& inputs_;
  at::Tensor transposed_;  // rows as [dim, classes]
  ConstMatrix states_;
  ConstMatrix rows_;
  ConstMatrix transposed_view_;
  const int64_t* targets_;
  RowBlocks chunks_;
};

at::Tensor loss_by_operators(const Inputs& inputs) {
  const at::Tensor scores = at::matmul(inputs.states, inputs.rows.t());
  if (!inputs.is_sampled()) {
    return at::cross_entropy_loss(scores, inputs.targets);
  }
  return sampled_softmax_loss(
      {.positive = (inputs.states * inputs.positives).sum(1),
       .negative = scores,
       .positive_ids = inputs.positive_ids,
       .negative_ids = inputs.negative_ids});
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  // `inputs` has the other tensors, too. They are parameters so that autograd sees them.
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& /*states*/,
      const at::Tensor& /*rows*/,
      const std::optional<at::Tensor>& /*positives*/,
      const Inputs& inputs) {
    const LossAndGradients all = SoftmaxPass(inputs).loss_and_gradients();
    context->save_for_backward(
        {inputs.states,
         inputs.rows,
         inputs.positives,
         inputs.targets,
         inputs.positive_ids,
         inputs.negative_ids,
         all.states,
         all.rows,
         all.positives});
    return all.loss;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    variable_list result;
    if (!at::GradMode::is_enabled()) {
      for (size_t i = 0; i < (saved[2].defined() ? 3 : 2); ++i) {
        result.push_back(saved[6 + i] * gradients[0]);
      }
    } else {
      // Only the operators support a second derivative.
      result = gradients_by_operators(
          {saved[0], saved[1], saved[2]},
          [&](at::TensorList sources) {
            return loss_by_operators(
                {.states = sources[0],
                 .rows = sources[1],
                 .targets = saved[3],
                 .positives = sources[2],
                 .positive_ids = saved[4],
                 .negative_ids = saved[5]});
          },
          gradients[0]);
    }
    result.resize(4);
    return result;
  }
};

void check_matrix(
    const at::Tensor& matrix,
    const char* name,
    const char* loss) {
  check_floating(matrix, name, loss);
  TESSERA_CHECK_VALUE(
      matrix.dim() == 2 && matrix.numel() > 0,
      "[{}] {} must be a matrix of one row or more, but got shape {}. Give it the shape [n, dim].",
      loss,
      name,
      matrix.sizes());
}

void check_same_kind(
    const at::Tensor& states,
    const at::Tensor& other,
    const char* name,
    const char* loss) {
  TESSERA_CHECK_VALUE(
      states.size(1) == other.size(1),
      "[{}] states and {} must have the same dim, but got {} and {}. Project one of them.",
      loss,
      name,
      states.size(1),
      other.size(1));
  TESSERA_CHECK_TYPE(
      states.scalar_type() == other.scalar_type(),
      "[{}] states and {} must have the same dtype, but got {} and {}. Convert one of them with .to().",
      loss,
      name,
      states.scalar_type(),
      other.scalar_type());
}

// Checks that there is one integer for each row of `matrix`, and returns them as int64.
at::Tensor checked_ids(
    const at::Tensor& ids,
    const char* name,
    const at::Tensor& matrix,
    const char* rows_name,
    const char* loss) {
  TESSERA_CHECK_VALUE(
      ids.defined() && ids.dim() == 1 && ids.size(0) == matrix.size(0),
      "[{}] {} must have shape [{}], one per row of {}, but got {}. Pass as many.",
      loss,
      name,
      matrix.size(0),
      rows_name,
      describe(ids));
  check_integers(ids, name, loss);
  TESSERA_CHECK_VALUE(
      ids.device() == matrix.device(),
      "[{}] {} must be on {}, the device of {}, but got {}. Move it with .to().",
      loss,
      name,
      matrix.device(),
      rows_name,
      ids.device());
  return ids.to(at::kLong).contiguous();
}

void check_targets(const at::Tensor& targets, int64_t classes) {
  const auto lowest = targets.min().item<int64_t>();
  const auto highest = targets.max().item<int64_t>();
  TESSERA_CHECK_INDEX(
      lowest >= 0 && highest < classes,
      "[linear_cross_entropy] targets must be in [0, {}), but got {}. Pass indices of rows.",
      classes,
      lowest < 0 ? lowest : highest);
}

at::Tensor loss_of(Inputs inputs, const char* name) {
  const auto is_plain = [](const at::Tensor& tensor) {
    return !tensor.defined() || is_plain_float32(tensor);
  };
  at::Tensor loss;
  if (!is_plain(inputs.states) || !is_plain(inputs.rows) ||
      !is_plain(inputs.positives) || torch::jit::tracer::isTracing()) {
    loss = loss_by_operators(inputs);
  } else {
    inputs.states = inputs.states.contiguous();
    inputs.rows = inputs.rows.contiguous();
    if (inputs.is_sampled()) {
      inputs.positives = inputs.positives.contiguous();
    }
    loss = needs_gradient({inputs.states, inputs.rows, inputs.positives})
        ? LinearCrossEntropy::apply(
              inputs.states,
              inputs.rows,
              inputs.is_sampled() ? std::optional(inputs.positives)
                                  : std::nullopt,
              inputs)
        : SoftmaxPass(inputs).loss();
  }
  TESSERA_CHECK_VALUE(
      std::isfinite(loss.item<double>()),
      "[{}] the loss must be finite, but it is {}: an input has NaN or is too large. Lower the learning rate, or look for a division by 0 in the model.",
      name,
      number_in_message(loss.item<double>()));
  return loss;
}

}  // namespace

at::Tensor linear_cross_entropy(
    const at::Tensor& states,
    const at::Tensor& rows,
    const at::Tensor& targets) {
  constexpr const char* kName = "linear_cross_entropy";
  check_matrix(states, "states", kName);
  check_matrix(rows, "rows", kName);
  check_same_kind(states, rows, "rows", kName);
  const at::Tensor ids =
      checked_ids(targets, "targets", states, "states", kName);
  check_targets(ids, rows.size(0));
  return loss_of({.states = states, .rows = rows, .targets = ids}, kName);
}

at::Tensor sampled_linear_cross_entropy(
    const at::Tensor& states,
    const at::Tensor& positives,
    const at::Tensor& negatives,
    const at::Tensor& positive_ids,
    const at::Tensor& negative_ids) {
  constexpr const char* kName = "sampled_linear_cross_entropy";
  check_matrix(states, "states", kName);
  check_matrix(positives, "positives", kName);
  check_matrix(negatives, "negatives", kName);
  check_same_kind(states, positives, "positives", kName);
  check_same_kind(states, negatives, "negatives", kName);
  TESSERA_CHECK_VALUE(
      positives.size(0) == states.size(0),
      "[{}] positives must have shape [{}, dim], one row per state, but got {} rows. Pass the row of each state's target.",
      kName,
      states.size(0),
      positives.size(0));
  return loss_of(
      {.states = states,
       .rows = negatives,
       .positives = positives,
       .positive_ids =
           checked_ids(positive_ids, "positive_ids", states, "states", kName),
       .negative_ids = checked_ids(
           negative_ids, "negative_ids", negatives, "negatives", kName)},
      kName);
}

}  // namespace tessera
