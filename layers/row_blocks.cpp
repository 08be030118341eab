// SPDX-License-Identifier: Apache-2.0
#include "layers/row_blocks.h"

#include "src/common/parallel.h"

#include <ATen/Version.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUBlas.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

namespace tessera {

namespace {

// The distance between two rows. The stride of a dimension of size 1 may be any number.
int64_t row_stride(const at::Tensor& matrix) {
  return std::max(matrix.stride(0), matrix.size(1));
}

}  // namespace

RowBlocks::RowBlocks(int64_t rows, int64_t size, int64_t row_bytes)
    : size_(size), row_bytes_(row_bytes) {
  while (block_begins_.back() + size_ <= rows) {
    block_begins_.push_back(block_begins_.back() + size_);
  }
  // Keep the number of different block lengths small, because each thread compiles its
  // matrix products for each length.
  const int64_t left = rows - block_begins_.back();
  if (left >= kTile) {
    block_begins_.push_back(block_begins_.back() + left / kTile * kTile);
  }
  if (block_begins_.back() < rows) {
    block_begins_.push_back(rows);
  }
}

at::Tensor RowBlocks::part(const at::Tensor& tensor, int64_t block) const {
  return tensor.narrow(
      0, block_begins_[block], block_begins_[block + 1] - block_begins_[block]);
}

void RowBlocks::for_each(c10::function_ref<void(int64_t)> task) const {
  run_tasks(count(), block_begins_.back() * row_bytes_, [&](int64_t block) {
    // The guards apply to one thread only, so each task needs them.
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    task(block);
  });
}

void multiply(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& out,
    bool add) {
  at::native::cpublas::brgemm(
      a.size(0),
      b.size(1),
      a.size(1),
      row_stride(a),
      row_stride(b),
      row_stride(out),
      add,
      a.const_data_ptr<float>(),
      b.const_data_ptr<float>(),
      out.mutable_data_ptr<float>());
}

bool has_fast_products() {
  static const bool has_avx512 = at::get_cpu_capability() == "AVX512";
  return has_avx512;
}

bool is_plain_float32(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided &&
      tensor.scalar_type() == at::kFloat && !tensor.is_neg() &&
      !tensor._fw_grad(/*level=*/0).defined();
}

}  // namespace tessera
