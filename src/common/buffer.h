// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/step_memory.h"

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

/// An allocator that takes memory from allocate_step_memory() and leaves new elements
/// uninitialised on resize(). The elements are overwritten anyway, and zeros would cost
/// one more write of the memory.
template <class T>
struct UninitializedAllocator : std::allocator<T> {
  static_assert(std::is_trivial_v<T>, "T must not initialise its members");

  template <class U>
  struct rebind {
    using other = UninitializedAllocator<U>;
  };

  T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) {
      throw std::bad_array_new_length();
    }
    return static_cast<T*>(allocate_step_memory(count * sizeof(T)));
  }
  void deallocate(T* memory, size_t /*count*/) noexcept {
    free_step_memory(memory);
  }

  template <class U>
  void construct(U* address) noexcept {
    ::new (static_cast<void*>(address)) U;
  }
  template <class U, class... Args>
  void construct(U* address, Args&&... args) {
    ::new (static_cast<void*>(address)) U(std::forward<Args>(args)...);
  }
};

/// A vector whose new elements are uninitialised.
template <class T>
using Buffer = std::vector<T, UninitializedAllocator<T>>;

}  // namespace tessera
