// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// Lets every CPU tensor that is made from now on, LibTorch's operators' too,
/// take its memory from what earlier steps gave back. Tessera's own always do.
///
///   int main() {
///     tessera::keep_memory_between_steps();
///
/// Without it malloc() hands large blocks back to the system after each step, and
/// the next one waits while their pages are made anew: up to a third of the time
/// where many activations are wide. While steps go on, what none of them has
/// wanted for a while is given back; a process that then idles keeps the rest.
///
/// For the whole process and for good: it sets LibTorch's CPU allocator, whose
/// memory LibTorch's profiler then does not see. Call it before other threads make
/// tensors; again it changes nothing.
/// Errors:  none; tensors that get no memory raise c10::OutOfMemoryError.
void keep_memory_between_steps();

}  // namespace tessera
