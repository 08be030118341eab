// SPDX-License-Identifier: Apache-2.0
// Prefetches memory. There is no include guard, because this file is included once per
// instruction set, inside the target namespace of the kernels.

// Prefetches kLines lines. With a loop over lines, a lookup of rows of 512 bytes took 1.2
// times as long.
template <int kLines>
HWY_INLINE void PrefetchConsecutive(const char* first) {
  if constexpr (kLines > 1) {
    PrefetchConsecutive<kLines / 2>(first);
    PrefetchConsecutive<kLines / 2>(first + kLines / 2 * kLineBytes);
  } else {
    hwy::Prefetch(first);
  }
}

// Prefetches every cache line that [from, from + bytes) touches. A row of 60 bytes
// usually touches two lines. Rows whose size is a multiple of a line begin at a line.
HWY_INLINE void PrefetchLines(const void* from, int64_t bytes) {
  const char* first = static_cast<const char*>(from);
  int64_t lines = bytes / kLineBytes;
  for (; lines >= 8; lines -= 8) {
    PrefetchConsecutive<8>(first);
    first += 8 * kLineBytes;
  }
  if (lines >= 4) {
    PrefetchConsecutive<4>(first);
    first += 4 * kLineBytes;
  }
  if ((lines & 2) != 0) {
    PrefetchConsecutive<2>(first);
    first += 2 * kLineBytes;
  }
  if ((lines & 1) != 0) {
    PrefetchConsecutive<1>(first);
    first += kLineBytes;
  }
  if (bytes % kLineBytes != 0) {
    hwy::Prefetch(first);
    hwy::Prefetch(first + bytes % kLineBytes - 1);
  }
}

// Prefetches a line to the second-level cache, which has room for many more of them.
HWY_INLINE void PrefetchToSecondLevel(const void* from) {
  __builtin_prefetch(from, /*rw=*/0, /*locality=*/2);
}
