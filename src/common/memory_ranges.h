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
  /// Adds the memory from the first to the last number of `tensor`, which is on the CPU.
  void add(const at::Tensor& tensor);

  /// Whether the memory from the first to the last number of `tensor`, which is on the
  /// CPU, shares a byte with a tensor that was added. It compares addresses, so the
  /// tensors may have different storages.
  bool overlap(const at::Tensor& tensor) const;

 private:
  // The end of each range by its begin. The ranges are disjoint.
  std::map<uintptr_t, uintptr_t> ends_;
};

}  // namespace tessera
