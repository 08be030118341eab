// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/dense/matrix.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

/// The gradients of parameters for each block of rows. They are added in the order of
/// blocks, for reproducible results.
class PartialGradients {
 public:
  /// Has gradients for the `tensors` that are `needed`, except the first `num_inputs`.
  PartialGradients(
      const std::vector<at::Tensor>& tensors,
      const std::vector<bool>& needed,
      size_t num_inputs,
      int64_t blocks);

  bool has(size_t tensor) const {
    return parts_[tensor].is_needed;
  }

  /// The gradient of a block, uninitialized. That of a vector has one row.
  MutableMatrix part(size_t tensor, int64_t block) const;

  /// Sets the sums of all blocks in `gradients`, which has a place for each tensor. They
  /// are views of one storage, so that one operator adds all. torch::save() of one tensor
  /// writes the whole storage.
  void set_sums(std::vector<at::Tensor>& gradients) const;

 private:
  struct Part {
    bool is_needed = false;
    int64_t begin = 0;  // in a row of values_
    std::vector<int64_t> shape = {};
  };

  std::vector<Part> parts_;
  at::Tensor values_;  // [blocks, sum of sizes and some zeros]
  float* data_ = nullptr;
  int64_t stride_ = 0;
};

}  // namespace tessera
