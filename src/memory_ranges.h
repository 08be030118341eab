// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

namespace tessera {

/// The memory of some tensors, to find out whether another one shares it.
class MemoryRanges {
 public:
  /// `tensor`: contiguous, on the CPU.
  void add(const at::Tensor& tensor);

  /// Whether a byte of `tensor`, contiguous and on the CPU, belongs to one that
  /// was added. They need not be views of one storage.
  bool overlap(const at::Tensor& tensor) const;

 private:
  std::map<uintptr_t, uintptr_t> ends_;  // of disjoint ranges, by their begins
};

}  // namespace tessera
