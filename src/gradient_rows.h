// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace tessera {

/// Which rows of a table its dense gradient belongs to. The gradient alone does
/// not tell a row that was looked up and got zeros from one that was not.
class GradientRows : public std::enable_shared_from_this<GradientRows> {
 public:
  /// `table`: a leaf of autograd, [rows, dim].
  explicit GradientRows(at::Tensor table);

  /// Called in a backward pass that will add to table.grad().
  /// `rows` [n] int64, with duplicates.
  void mark(const at::Tensor& rows);

  /// The rows that were marked since the gradient was zeroed, and those whose
  /// gradient is not zero: sorted, [n] int64. table.grad() is dense.
  at::Tensor touched() const;

 private:
  // Since the pass before: optimizers zero gradients without a word.
  bool was_zeroed() const;

  at::Tensor table_;
  at::Tensor is_marked_;  // [rows] bool, from the first mark() on
  int last_pass_ = -1;
  // The gradient at the end of that pass.
  const at::TensorImpl* last_gradient_ = nullptr;
  int64_t last_version_ = 0;
};

}  // namespace tessera
