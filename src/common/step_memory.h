// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>

namespace tessera {

// Step memory is taken and given back in every step. malloc() returns free memory at the
// end of its heap to the system. The next step then waits for a page fault on each page,
// which takes longer than a lookup. Here, blocks are kept for the next step, and blocks
// that were not needed for a while are freed.

/// Returns uninitialised memory that is aligned to 64 bytes. Any thread may call it.
/// Errors:  std::bad_alloc.
void* allocate_step_memory(size_t bytes);

/// Gives `memory` back. It is the result of allocate_step_memory(), or nullptr.
void free_step_memory(void* memory) noexcept;

/// An allocator of step memory for tensors.
c10::Allocator* step_allocator();

/// Returns a contiguous, uninitialised tensor in step memory.
at::Tensor empty_in_step_memory(
    c10::IntArrayRef shape,
    at::ScalarType dtype = at::kFloat);

/// Returns the number of bytes in the blocks that are kept for the next step.
size_t cached_step_memory();

}  // namespace tessera
