// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// Reuses the memory of earlier steps for all CPU tensors that are made from now on, also
/// for those of LibTorch's operators. Tessera's own tensors always reuse it.
///
///   int main() {
///     tessera::keep_memory_between_steps();
///
/// Without this call, malloc() returns large blocks to the system after each step, and
/// the next step waits while the system makes their pages again. This wait takes up to a
/// third of a step's time if many activations are wide. With this call, blocks that no step
/// has needed for a while are freed during later steps. A process that idles frees none.
///
/// The call sets LibTorch's CPU allocator for the whole process and can't be undone.
/// LibTorch's profiler does not see this memory. Call it before other threads make
/// tensors. Further calls change nothing.
/// Errors:  none. Tensors that get no memory raise c10::OutOfMemoryError.
void keep_memory_between_steps();

}  // namespace tessera
