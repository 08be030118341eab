// SPDX-License-Identifier: Apache-2.0
#include "src/common/memory_ranges.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace tessera {

namespace {

std::pair<uintptr_t, uintptr_t> range_of(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const size_t bytes = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.element_size());
  return {begin, begin + bytes};
}

}  // namespace

void MemoryRanges::add(const at::Tensor& tensor) {
  auto [begin, end] = range_of(tensor);
  if (begin == end) {
    return;
  }
  auto next = ends_.upper_bound(begin);
  if (next != ends_.begin() && std::prev(next)->second > begin) {
    --next;
  }
  while (next != ends_.end() && next->first < end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace(begin, end);
}

bool MemoryRanges::overlap(const at::Tensor& tensor) const {
  const auto [begin, end] = range_of(tensor);
  if (begin == end) {
    return false;
  }
  const auto next = ends_.lower_bound(end);  // the first range behind `tensor`
  return next != ends_.begin() && std::prev(next)->second > begin;
}

}  // namespace tessera
