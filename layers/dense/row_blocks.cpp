// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/row_blocks.h"

#include "src/common/parallel.h"
#include "src/common/step_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/autograd.h>

namespace tessera {

void RowBlocks::for_each(c10::function_ref<void(int64_t)> task) const {
  run_tasks(count(), rows_ * row_bytes_, task);
}

RowBlocks RowBlocks::divided_for_threads() const {
  if (is_whole_ && rows_ < kTile * thread_count()) {
    return *this;
  }
  return {
      rows_,
      task_size(rows_, rows_ * row_bytes_, std::min(kTile, size_), size_),
      row_bytes_};
}

bool RowBlocks::are_faster() const {
  if (is_whole_) {
    constexpr int64_t kFewRows =
        64;  // with fewer, it pays not to transpose the weights
    return rows_ >= kFewRows && !has_fast_library_products();
  }
  constexpr int64_t kManyBlocks = 8;
  const int64_t threads = thread_count();
  return count() >= threads ||
      (count() >= kManyBlocks && 2 * count() >= threads);
}

PartialGradients::PartialGradients(
    const std::vector<at::Tensor>& tensors,
    const std::vector<bool>& needed,
    size_t num_inputs,
    int64_t blocks) {
  int64_t size = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    parts_.push_back(
        {.is_needed = i >= num_inputs && needed[i],
         .begin = size,
         .shape = tensors[i].sizes().vec()});
    size += parts_[i].is_needed ? tensors[i].numel() : 0;
  }
  if (size > 0) {
    // at::sum adds the columns that are left after a multiple of 32 in an order that
    // depends on the number of threads.
    constexpr int64_t kColumns = 32;
    stride_ = (size + kColumns - 1) / kColumns * kColumns;
    values_ = empty_in_step_memory({blocks, stride_});
    values_.narrow(1, size, stride_ - size).zero_();
    data_ = values_.mutable_data_ptr<float>();
  }
}

MutableMatrix PartialGradients::part(size_t tensor, int64_t block) const {
  const Part& part = parts_[tensor];
  float* memory = data_ + block * stride_ + part.begin;
  return part.shape.size() == 1
      ? matrix_in(memory, 1, part.shape[0])
      : matrix_in(memory, part.shape[0], part.shape[1]);
}

void PartialGradients::set_sums(std::vector<at::Tensor>& gradients) const {
  if (!values_.defined()) {
    return;
  }
  // One sum for all parameters starts the threads once.
  const at::Tensor sum =
      values_.size(0) == 1 ? values_.select(0, 0) : values_.sum(0);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].is_needed) {
      const std::vector<int64_t>& shape = parts_[i].shape;
      gradients[i] =
          sum.narrow(0, parts_[i].begin, c10::multiply_integers(shape))
              .view(shape);
    }
  }
}

bool is_plain_float32(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided &&
      tensor.scalar_type() == at::kFloat && !tensor.is_neg() &&
      !tensor._is_zerotensor() && !tensor._fw_grad(/*level=*/0).defined();
}

at::Tensor rows_of(const at::Tensor& tensor) {
  const at::Tensor rows = tensor.reshape({-1, tensor.size(-1)});
  const bool has_rows = (rows.size(1) == 1 || rows.stride(1) == 1) &&
      (rows.size(0) == 1 || rows.stride(0) >= rows.size(1));
  return has_rows ? rows : rows.contiguous();
}

at::Tensor unflatten_rows(const at::Tensor& rows, const at::Tensor& like) {
  if (like.dim() == 2) {
    return rows;
  }
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = rows.size(1);
  return rows.view(shape);
}

bool needs_gradient(at::TensorList tensors) {
  return at::GradMode::is_enabled() &&
      std::ranges::any_of(
             tensors, [](const at::Tensor& t) { return t.requires_grad(); });
}

std::vector<at::Tensor> gradients_by_operators(
    at::TensorList tensors,
    c10::function_ref<at::Tensor(at::TensorList)> compute,
    const at::Tensor& gradient) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const bool has_graph = at::GradMode::is_enabled();
  const at::AutoGradMode grad_mode(true);
  std::vector<at::Tensor> sources;
  std::vector<at::Tensor> needed;
  for (const at::Tensor& tensor : tensors) {
    sources.push_back(tensor);
    if (tensor.defined() && tensor.requires_grad()) {
      // Tensors may depend on each other, but their aliases do not.
      sources.back() =
          has_graph ? tensor.view_as(tensor) : tensor.detach().requires_grad_();
      needed.push_back(sources.back());
    }
  }
  const std::vector<at::Tensor> found = torch::autograd::grad(
      {compute(sources)},
      needed,
      {gradient},
      /*retain_graph=*/has_graph,
      /*create_graph=*/has_graph,
      /*allow_unused=*/true);
  std::vector<at::Tensor> result(tensors.size());
  size_t next = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    if (tensors[i].defined() && tensors[i].requires_grad()) {
      result[i] = found[next++];
    }
  }
  return result;
}

}  // namespace tessera
