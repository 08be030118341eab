// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace tessera {

/// Records which rows of a table its dense gradient belongs to. The gradient alone does
/// not distinguish a row with a zero gradient from a row that was not looked up.
class GradientRows : public std::enable_shared_from_this<GradientRows> {
 public:
  /// `table`: a leaf of autograd, [rows, dim].
  explicit GradientRows(at::Tensor table);

  /// Marks rows in a backward pass that will add to table.grad(). `rows` is [n] int64
  /// and may have duplicates.
  void mark_touched(const at::Tensor& rows);

  /// The rows that were marked since the gradient was zeroed, and all rows whose
  /// gradient is not zero: [n] int64, sorted. table.grad() must be dense.
  at::Tensor touched() const;

 private:
  // Whether the gradient was zeroed after the previous pass. LibTorch does not report
  // this.
  bool was_zeroed() const;

  at::Tensor table_;
  at::Tensor
      is_touched_;  // [rows] bool; undefined before the first mark_touched()
  int last_pass_ = -1;
  // The gradient at the end of the last pass.
  const at::TensorImpl* last_gradient_ = nullptr;
  int64_t last_version_ = 0;
};

}  // namespace tessera
