// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

/// Leaves elements uninitialised on resize(): they are written anyway, and the
/// zeros would cost a pass over memory.
template <class T>
struct UninitializedAllocator : std::allocator<T> {
  static_assert(std::is_trivial_v<T>, "T must not initialise its members");

  template <class U>
  struct rebind {
    using other = UninitializedAllocator<U>;
  };

  template <class U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
  template <class U, class... Args>
  void construct(U* place, Args&&... args) {
    ::new (static_cast<void*>(place)) U(std::forward<Args>(args)...);
  }
};

/// A vector whose new elements are uninitialised.
template <class T>
using Buffer = std::vector<T, UninitializedAllocator<T>>;

}  // namespace tessera
