// SPDX-License-Identifier: Apache-2.0
// Prefetches memory. There is no include guard, because this file is included once per
// instruction set, inside the target namespace of the kernels.

enum class CacheLevel { kFirst, kSecond };

// The second-level cache has room for many more lines.
template <CacheLevel kLevel>
HWY_INLINE void PrefetchLine(const void* from) {
  __builtin_prefetch(
      from, /*rw=*/0, /*locality=*/kLevel == CacheLevel::kFirst ? 3 : 2);
}

template <int kLines, CacheLevel kLevel>
HWY_INLINE void PrefetchConsecutiveLines(const char* line) {
  for (int64_t i = 0; i < kLines; ++i) {
    PrefetchLine<kLevel>(line + i * kLineBytes);
  }
}

// Prefetches every cache line that [from, from + bytes) touches. A row of 60 bytes
// usually touches two lines. Rows whose size is a multiple of a line begin at a line.
template <CacheLevel kLevel = CacheLevel::kFirst>
HWY_INLINE void PrefetchLines(const void* from, int64_t bytes) {
  const char* line = static_cast<const char*>(from);
  int64_t lines = bytes / kLineBytes;
  // With one line or four lines per turn of the loop, lookups of rows of 512 bytes took
  // up to 1.5 times as long.
  for (; lines >= 8; lines -= 8) {
    PrefetchConsecutiveLines<8, kLevel>(line);
    line += 8 * kLineBytes;
  }
  if (lines >= 4) {
    PrefetchConsecutiveLines<4, kLevel>(line);
    line += 4 * kLineBytes;
    lines -= 4;
  }
  for (; lines > 0; --lines) {
    PrefetchLine<kLevel>(line);
    line += kLineBytes;
  }
  if (bytes % kLineBytes != 0) {
    PrefetchLine<kLevel>(line);
    PrefetchLine<kLevel>(line + bytes % kLineBytes - 1);
  }
}

// The same for rows that begin anywhere in a line.
template <CacheLevel kLevel = CacheLevel::kFirst>
HWY_INLINE void PrefetchUnaligned(const void* from, int64_t bytes) {
  const char* line = static_cast<const char*>(from);
  const char* last = line + bytes - 1;
  for (; line < last; line += kLineBytes) {
    PrefetchLine<kLevel>(line);
  }
  PrefetchLine<kLevel>(last);
}
