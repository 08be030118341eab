// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// Splits the rows of a batch into blocks. Each block is a task for one thread.
class RowBlocks {
 public:
  /// Block sizes should be multiples of it.
  static constexpr int64_t kTile = 32;

  /// `size` is the number of rows of a block. `row_bytes` is the memory traffic per row.
  RowBlocks(int64_t rows, int64_t size, int64_t row_bytes);

  int64_t size() const {
    return size_;
  }
  int64_t count() const {
    return static_cast<int64_t>(block_begins_.size()) - 1;
  }

  /// The rows of a block in a tensor [rows, ...].
  at::Tensor part(const at::Tensor& tensor, int64_t block) const;

  /// Runs task(0), ..., task(count() - 1) without autograd and autocast, on all threads.
  void for_each(c10::function_ref<void(int64_t)> task) const;

 private:
  int64_t size_;
  int64_t row_bytes_;
  std::vector<int64_t> block_begins_{0};  // then the end of the last block
};

/// out = a b, or out += a b, on the calling thread. All are float32 matrices, and the
/// elements of a row are adjacent. It uses oneDNN's kernels if the processor supports
/// them. Otherwise it uses those of at::mm, which are half as fast on a block.
void multiply(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& out,
    bool add = false);

/// Whether the processor has AVX-512, which makes oneDNN's kernels fast, and the
/// environment variable ATEN_CPU_CAPABILITY allows it.
bool has_fast_products();

/// Whether the tensor is float32 on the CPU, without a forward-mode tangent and without a
/// lazy negation. Only LibTorch's operators support the others.
bool is_plain_float32(const at::Tensor& tensor);

}  // namespace tessera
