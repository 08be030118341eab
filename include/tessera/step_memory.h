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
/// where the dense part is wide. What no step has wanted for a while is given
/// back, so the process holds about what its largest recent step took.
///
/// For the whole process and for good: it sets LibTorch's CPU allocator. Call it
/// before other threads make tensors; again it changes nothing.
void keep_memory_between_steps();

}  // namespace tessera
