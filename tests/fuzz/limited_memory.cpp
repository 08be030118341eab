// SPDX-License-Identifier: Apache-2.0
// Refuses large requests for memory, as a system without so much memory does. A damaged
// archive may ask LibTorch's reader for any amount. The operator of the sanitizer would end
// the fuzzer instead of raising std::bad_alloc.
#include <cstddef>
#include <cstdlib>
#include <new>

void* operator new(std::size_t size) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 31;
  void* memory = size > kMaxBytes ? nullptr : std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}
