// SPDX-License-Identifier: Apache-2.0
#include "packages/models/src/jagged_attention.h"

#include "layers/dense/row_blocks.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The rows of queries that are computed together. Their scores stay in the second-level
// cache for any length up to several thousand.
constexpr int64_t kBlockQueries = 32;

int64_t padded(int64_t columns) {
  constexpr int64_t kFloats = 16;
  return (columns + kFloats - 1) / kFloats * kFloats;
}

// [columns, rows] with contiguous rows, each with a stride of padded(rows).
MutableMatrix transpose_to(float* memory, const ConstMatrix& matrix) {
  const MutableMatrix out{
      memory, matrix.columns, matrix.rows, padded(matrix.rows)};
  transpose(matrix, out);
  return out;
}

// This says which attention weights dropout sets to 0. The same key gives the same ones.
struct ShareDropout {
  double probability = 0.0;
  int64_t key = 0;

  // Drops shares or their gradients [rows, columns], in place. No two blocks of the batch
  // have the same `first_row`.
  void apply(const MutableMatrix& shares, int64_t first_row) const {
    if (probability > 0.0) {
      // The memory of rows before the first is not touched.
      float* base = shares.data - first_row * shares.row_stride;
      active_dense_kernels().dropout(
          {.begin_row = first_row,
           .end_row = first_row + shares.rows,
           .dim = shares.row_stride,
           .key = static_cast<uint64_t>(key),
           .threshold = static_cast<uint32_t>(probability * 0x1p32),
           .scale = static_cast<float>(1.0 / (1.0 - probability)),
           .x = base,
           .out = base});
    }
  }
};

// Queries, keys and values of one head in one sequence, [length, head_dim] each.
template <class Float>
struct Projected {
  Matrix<Float> query;
  Matrix<Float> key;
  Matrix<Float> value;
};

// The sizes of a jagged batch with its heads.
struct Sequences {
  const int64_t* splits;
  int64_t count;
  int64_t num_heads;
  int64_t dim;
  ShareDropout dropout;

  // The number of a row of shares in the batch, for dropout.
  int64_t share_row(int64_t sequence, int64_t head) const {
    return num_heads * splits[sequence] + head * length(sequence);
  }
  int64_t head_dim() const {
    return dim / num_heads;
  }
  float scale() const {
    return 1.0F / std::sqrt(static_cast<float>(head_dim()));
  }
  int64_t length(int64_t sequence) const {
    return splits[sequence + 1] - splits[sequence];
  }

  template <class Float>
  Projected<Float> part(
      const Matrix<Float>& projected,
      int64_t sequence,
      int64_t head) const {
    const auto rows = projected.row_range(splits[sequence], length(sequence));
    const auto columns = [&](int64_t which) {
      return rows.column_range(which * dim + head * head_dim(), head_dim());
    };
    return {columns(0), columns(1), columns(2)};
  }
  template <class Float>
  Matrix<Float> head_of(
      const Matrix<Float>& matrix,
      int64_t sequence,
      int64_t head) const {
    return matrix.row_range(splits[sequence], length(sequence))
        .column_range(head * head_dim(), head_dim());
  }

  // Runs task(sequence) for all sequences that are not empty.
  void for_each(c10::function_ref<void(int64_t)> task) const {
    const int64_t bytes = splits[count] * 4 * dim * int64_t{sizeof(float)};
    run_tasks(count, bytes, [&](int64_t sequence) {
      if (length(sequence) > 0) {
        task(sequence);
      }
    });
  }
};

Sequences sequences_of(
    const at::Tensor& projected,
    const at::Tensor& row_splits,
    int64_t num_heads,
    const ShareDropout& dropout) {
  return {
      .splits = row_splits.const_data_ptr<int64_t>(),
      .count = row_splits.size(0) - 1,
      .num_heads = num_heads,
      .dim = projected.size(1) / 3,
      .dropout = dropout};
}

// Returns the softmax shares [queries, last + 1] that the queries first .. last give to the
// keys 0 .. last.
kernels::SoftmaxArgs compute_shares(
    const ConstMatrix& query,
    const ConstMatrix& transposed_key,
    int64_t first,
    float scale,
    float* memory) {
  const int64_t columns = first + query.rows;
  const MutableMatrix scores{
      memory, query.rows, columns, padded(transposed_key.columns)};
  multiply(query, transposed_key.column_range(0, columns), scores);
  const kernels::SoftmaxArgs args{
      .rows = query.rows,
      .columns = columns,
      .stride = scores.row_stride,
      .length = first + 1,
      .length_step = 1,
      .scale = scale,
      .values = memory};
  active_dense_kernels().softmax(args);
  return args;
}

at::Tensor attention_by_kernels(
    const at::Tensor& projected,
    const Sequences& sequences) {
  const at::Tensor result =
      empty_in_step_memory({projected.size(0), sequences.dim});
  const ConstMatrix in = matrix_of(projected);
  const MutableMatrix out = mutable_matrix_of(result);
  sequences.for_each([&](int64_t sequence) {
    const int64_t length = sequences.length(sequence);
    const at::Tensor memory = empty_in_step_memory(
        {(sequences.head_dim() + kBlockQueries) * padded(length)});
    float* key_memory = memory.mutable_data_ptr<float>();
    float* scores = key_memory + sequences.head_dim() * padded(length);
    for (int64_t head = 0; head < sequences.num_heads; ++head) {
      const auto part = sequences.part(in, sequence, head);
      const MutableMatrix own = sequences.head_of(out, sequence, head);
      const ConstMatrix key = transpose_to(key_memory, part.key);
      for (int64_t first = 0; first < length; first += kBlockQueries) {
        const int64_t rows = std::min(kBlockQueries, length - first);
        const auto shares = compute_shares(
            part.query.row_range(first, rows),
            key,
            first,
            sequences.scale(),
            scores);
        const MutableMatrix kept{
            shares.values, rows, shares.columns, shares.stride};
        sequences.dropout.apply(
            kept, sequences.share_row(sequence, head) + first);
        multiply(
            kept,
            part.value.row_range(0, shares.columns),
            own.row_range(first, rows));
      }
    }
  });
  return result;
}

// Computes the gradients of one head in one sequence. The shares are computed again,
// because they would take more memory than everything else in a step.
void head_gradient(
    const Projected<const float>& in,
    const ConstMatrix& gradient,  // [length, head_dim]
    const Projected<float>& out,
    float scale,
    const ShareDropout& dropout,
    int64_t share_row,  // of the first query
    float* memory) {
  const int64_t length = in.query.rows;
  const int64_t size = in.query.columns * padded(length);
  const ConstMatrix key = transpose_to(memory, in.key);
  const ConstMatrix value = transpose_to(memory + size, in.value);
  float* score_memory = memory + 2 * size;
  float* gradient_memory = score_memory + kBlockQueries * padded(length);
  float* kept_memory = gradient_memory + kBlockQueries * padded(length);
  for (int64_t first = 0; first < length; first += kBlockQueries) {
    const int64_t rows = std::min(kBlockQueries, length - first);
    const ConstMatrix query = in.query.row_range(first, rows);
    const ConstMatrix own = gradient.row_range(first, rows);
    kernels::SoftmaxArgs args =
        compute_shares(query, key, first, scale, score_memory);
    const int64_t columns = args.columns;
    // Earlier blocks have begun the gradients of the rows before `first`. This block adds
    // to them, and begins those of its own rows.
    const auto add_to_rows = [&](const ConstMatrix& a,
                                 const ConstMatrix& b,
                                 const MutableMatrix& sums) {
      if (first > 0) {
        multiply(
            a.column_range(0, first).transposed(),
            b,
            sums.row_range(0, first),
            {.adds = true});
      }
      multiply(
          a.column_range(first, rows).transposed(),
          b,
          sums.row_range(first, rows));
    };
    MutableMatrix kept{args.values, rows, columns, args.stride};
    if (dropout.probability > 0.0) {
      std::copy_n(args.values, rows * args.stride, kept_memory);
      kept.data = kept_memory;
      dropout.apply(kept, share_row + first);
    }
    add_to_rows(kept, own, out.value);
    const MutableMatrix score_gradient{
        gradient_memory, rows, columns, args.stride};
    multiply(own, value.column_range(0, columns), score_gradient);
    dropout.apply(score_gradient, share_row + first);
    args.gradients = gradient_memory;
    active_dense_kernels().softmax_gradient(args);
    multiply(
        score_gradient,
        in.key.row_range(0, columns),
        out.query.row_range(first, rows));
    add_to_rows(score_gradient, query, out.key);
  }
}

at::Tensor gradient_by_kernels(
    const at::Tensor& projected,
    const Sequences& sequences,
    const at::Tensor& gradient) {
  const at::Tensor result = empty_in_step_memory(projected.sizes());
  const ConstMatrix in = matrix_of(projected);
  const ConstMatrix out_gradient = matrix_of(gradient);
  const MutableMatrix out = mutable_matrix_of(result);
  sequences.for_each([&](int64_t sequence) {
    const at::Tensor memory = empty_in_step_memory(
        {(2 * sequences.head_dim() + 3 * kBlockQueries) *
         padded(sequences.length(sequence))});
    for (int64_t head = 0; head < sequences.num_heads; ++head) {
      head_gradient(
          sequences.part(in, sequence, head),
          sequences.head_of(out_gradient, sequence, head),
          sequences.part(out, sequence, head),
          sequences.scale(),
          sequences.dropout,
          sequences.share_row(sequence, head),
          memory.mutable_data_ptr<float>());
    }
  });
  return result;
}

// Drops the shares [heads, length, length] of a sequence that the kernels drop.
at::Tensor dropout_of(
    const at::Tensor& shares,
    const Sequences& sequences,
    int64_t sequence) {
  const ShareDropout& dropout = sequences.dropout;
  if (dropout.probability == 0.0) {
    return shares;
  }
  if (torch::jit::tracer::isTracing()) {
    return at::dropout(shares, dropout.probability, /*train=*/true);
  }
  const int64_t length = sequences.length(sequence);
  const at::Tensor mask =
      at::ones({sequences.num_heads, length, padded(length)}, at::kFloat);
  dropout.apply(
      {mask.mutable_data_ptr<float>(),
       sequences.num_heads * length,
       padded(length),
       padded(length)},
      sequences.share_row(sequence, 0));
  return shares * mask.narrow(2, 0, length).to(shares.options());
}

at::Tensor attention_by_operators(
    const at::Tensor& projected,
    const Sequences& sequences) {
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < sequences.count; ++i) {
    const int64_t length = sequences.length(i);
    const at::Tensor heads =
        projected.narrow(0, sequences.splits[i], length)
            .reshape({length, 3, sequences.num_heads, sequences.head_dim()})
            .permute({1, 2, 0, 3});  // [3, heads, length, head_dim]
    const at::Tensor is_later =
        at::ones({length, length}, projected.options().dtype(at::kBool))
            .triu(1);
    const at::Tensor scores = at::matmul(heads[0], heads[1].transpose(1, 2)) /
        std::sqrt(static_cast<double>(sequences.head_dim()));
    const at::Tensor shares = at::softmax(
        scores.masked_fill(is_later, -std::numeric_limits<double>::infinity()),
        -1);
    parts.push_back(at::matmul(dropout_of(shares, sequences, i), heads[2])
                        .transpose(0, 1)
                        .reshape({length, sequences.dim}));
  }
  return parts.empty() ? projected.narrow(1, 0, sequences.dim)
                       : at::cat(parts, 0);
}

struct JaggedAttention : torch::autograd::Function<JaggedAttention> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& projected,
      const at::Tensor& row_splits,
      int64_t num_heads,
      double probability,
      int64_t key) {
    context->save_for_backward({projected, row_splits});
    context->saved_data["num_heads"] = num_heads;
    context->saved_data["probability"] = probability;
    context->saved_data["key"] = key;
    return attention_by_kernels(
        projected,
        sequences_of(projected, row_splits, num_heads, {probability, key}));
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Sequences sequences = sequences_of(
        saved[0],
        saved[1],
        context->saved_data["num_heads"].toInt(),
        {context->saved_data["probability"].toDouble(),
         context->saved_data["key"].toInt()});
    const at::Tensor gradient = gradients[0].resolve_neg();
    const bool uses_kernels =
        !at::GradMode::is_enabled() && is_plain_float32(gradient);
    const at::Tensor result = uses_kernels
        ? gradient_by_kernels(saved[0], sequences, gradient.contiguous())
        : gradients_by_operators(
              {saved[0]},
              [&](at::TensorList sources) {
                return attention_by_operators(sources[0], sequences);
              },
              gradient)[0];
    return {result, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor checked_row_splits(
    const at::Tensor& row_splits,
    int64_t rows,
    const std::string& class_name) {
  TESSERA_CHECK_VALUE(
      row_splits.defined() && row_splits.dim() == 1 && row_splits.size(0) >= 1,
      "[{}] row_splits must have shape [batch + 1], but got {}. Pass the row_splits of a RaggedFeature.",
      class_name,
      describe(row_splits));
  check_integers(row_splits, "row_splits", class_name);
  const at::Tensor splits =
      row_splits.detach().to(at::kCPU, at::kLong).contiguous();
  const int64_t* data = splits.const_data_ptr<int64_t>();
  const int64_t batch = splits.size(0) - 1;
  TESSERA_CHECK_VALUE(
      data[0] == 0 && data[batch] == rows,
      "[{}] row_splits must begin with 0 and end with the number of positions, {}, but got {} and {}. Pass the row_splits of these sequences.",
      class_name,
      rows,
      data[0],
      data[batch]);
  for (int64_t i = 0; i < batch; ++i) {
    TESSERA_CHECK_VALUE(
        data[i] <= data[i + 1],
        "[{}] row_splits must not fall, but row_splits[{}] is {} and row_splits[{}] is {}. Pass the cumulative sums of the lengths.",
        class_name,
        i,
        data[i],
        i + 1,
        data[i + 1]);
  }
  return splits;
}

at::Tensor jagged_causal_attention(
    const at::Tensor& projected,
    const at::Tensor& row_splits,
    int64_t num_heads,
    double dropout) {
  ShareDropout shares{.probability = dropout};
  if (dropout > 0.0) {
    shares.key = at::empty({1}, at::kLong).random_().item<int64_t>();
  }
  const Sequences sequences =
      sequences_of(projected, row_splits, num_heads, shares);
  if (!is_plain_float32(projected) || projected.numel() == 0 ||
      torch::jit::tracer::isTracing()) {
    return attention_by_operators(projected, sequences);
  }
  const at::Tensor rows = projected.contiguous();
  return rows.requires_grad() && at::GradMode::is_enabled()
      ? JaggedAttention::apply(
            rows, row_splits, num_heads, shares.probability, shares.key)
      : attention_by_kernels(rows, sequences);
}

}  // namespace tessera
