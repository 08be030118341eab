// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

namespace tessera {

/// The memory ranges of some tensors. It tells whether another tensor shares memory
/// with them.
class MemoryRanges {
 public:
  /// `tensor` is contiguous and on the CPU.
  void add(const at::Tensor& tensor);

  /// Whether `tensor`, contiguous and on the CPU, shares a byte with a tensor that was
  /// added. It compares addresses, so the tensors may have different storages.
  bool overlap(const at::Tensor& tensor) const;

 private:
  std::map<uintptr_t, uintptr_t> ends_;  // of disjoint ranges, by begin
};

}  // namespace tessera
