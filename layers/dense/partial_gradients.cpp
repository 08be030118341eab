// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/partial_gradients.h"

#include "src/common/step_memory.h"

#include <ATen/ops/sum.h>
#include <c10/util/accumulate.h>

namespace tessera {

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
  // One sum of all of them starts the threads once.
  const at::Tensor sum = values_.sum(0);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].is_needed) {
      const std::vector<int64_t>& shape = parts_[i].shape;
      gradients[i] =
          sum.narrow(0, parts_[i].begin, c10::multiply_integers(shape))
              .view(shape);
    }
  }
}

}  // namespace tessera
