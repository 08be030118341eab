// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>

namespace tessera {

// Memory that is taken and given back in every step. malloc() hands what lies at
// the end of its heap back to the system, and a step that gets it again waits for
// as many page faults as it has pages: longer than a lookup takes. Here blocks
// are kept for the next step; those that nobody has wanted for a while go back.

/// 64-byte aligned, of uninitialised bytes. In any thread.
/// Errors:  std::bad_alloc.
void* take_step_memory(size_t bytes);

/// `memory` from take_step_memory(), or nullptr.
void give_step_memory(void* memory) noexcept;

/// The same for tensors.
c10::Allocator* step_allocator();

/// A contiguous, uninitialised tensor.
at::Tensor empty_in_step_memory(
    c10::IntArrayRef shape,
    at::ScalarType dtype = at::kFloat);

/// Bytes of blocks that wait for the next step.
size_t kept_step_memory();

}  // namespace tessera
