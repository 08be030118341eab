// SPDX-License-Identifier: Apache-2.0
// Prefetches memory. There is no include guard, because this file is included once per
// instruction set, inside the target namespace of the kernels.

// Prefetches every cache line that [from, from + bytes) touches. A row of 60 bytes
// usually touches two lines. Rows whose size is a multiple of a line begin at a line.
HWY_INLINE void PrefetchLines(const void* from, int64_t bytes) {
  const char* first = static_cast<const char*>(from);
  for (int64_t byte = 0; byte < bytes; byte += kLineBytes) {
    hwy::Prefetch(first + byte);
  }
  if (bytes % kLineBytes != 0) {
    hwy::Prefetch(first + bytes - 1);
  }
}
