// SPDX-License-Identifier: Apache-2.0
// Fetching ahead, once per instruction set: included inside the target namespace
// of the kernels, hence no include guard.

// Every cache line that [from, from + bytes) touches. A row of 60 bytes lies on
// two lines more often than on one; those of whole lines begin on one.
HWY_INLINE void PrefetchLines(const void* from, int64_t bytes) {
  const char* first = static_cast<const char*>(from);
  for (int64_t byte = 0; byte < bytes; byte += kLineBytes) {
    hwy::Prefetch(first + byte);
  }
  if (bytes % kLineBytes != 0) {
    hwy::Prefetch(first + bytes - 1);
  }
}
