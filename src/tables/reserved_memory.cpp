// SPDX-License-Identifier: Apache-2.0
#include "src/tables/reserved_memory.h"

#include "src/common/available_memory.h"
#include "src/common/check.h"
#include "src/common/parallel.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <optional>

namespace tessera {

namespace {

// Writes to each page of a range, but changes nothing.
void write_to_pages(char* data, size_t bytes) {
  constexpr size_t kPage = 4096;  // the smallest one
  for (size_t i = 0; i < bytes; i += kPage) {
    std::atomic_ref<char>(data[i]).fetch_or(0, std::memory_order_relaxed);
  }
}

// Returns false if the system does not have the memory. `data` begins a page.
bool touch_range(char* data, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  // This is faster than a fault per page. Older systems do not know it.
  if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) {
    return true;
  }
  if (errno != EINVAL) {
    return false;
  }
#endif
  write_to_pages(data, bytes);
  return true;
}

}  // namespace

ReservedMemory::ReservedMemory(size_t bytes, const std::string& what)
    : bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
#ifdef __linux__
  void* memory = ::mmap(
      nullptr,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  data_ = memory == MAP_FAILED ? nullptr : memory;
#else
  data_ = std::calloc(bytes, 1);
#endif
  TESSERA_CHECK(
      data_ != nullptr,
      "[DynamicKeys] {} need {} MiB of addresses, but the system can't reserve them. Lower the capacity.",
      what,
      bytes >> 20);
}

void touch_pages(void* data, size_t bytes, const std::string& what) {
  // Linux promises more memory than there is, and ends the process that uses it.
  const std::optional<size_t> available = available_memory();
  TESSERA_CHECK(
      !available || bytes <= *available,
      "[DynamicKeys] {} need {} MiB of memory under preallocate, but only {} MiB are available. Lower the capacity, or set preallocate = false.",
      what,
      bytes >> 20,
      *available >> 20);
#ifdef MADV_HUGEPAGE
  // This is only a hint. With huge pages, access is faster. Memory that is taken only when
  // it is used has no huge pages, because each of 1000 keys in a large table would take a
  // whole one.
  if (bytes > 0) {
    ::madvise(data, bytes, MADV_HUGEPAGE);
  }
#endif
  constexpr int64_t kBytesPerTask = int64_t{16} << 20;  // whole huge pages
  const auto size = static_cast<int64_t>(bytes);
  std::atomic<bool> has_memory{true};
  run_ranges(size, kBytesPerTask, size, [&](int64_t begin, int64_t end) {
    char* range = static_cast<char*>(data) + begin;
    if (!touch_range(range, static_cast<size_t>(end - begin))) {
      has_memory = false;
    }
  });
  TESSERA_CHECK(
      has_memory,
      "[DynamicKeys] {} need {} MiB of memory under preallocate, but the system can't provide them. Lower the capacity, or set preallocate = false.",
      what,
      bytes >> 20);
}

ReservedMemory::~ReservedMemory() {
  if (data_ == nullptr) {
    return;
  }
#ifdef __linux__
  ::munmap(data_, bytes_);
#else
  std::free(data_);
#endif
}

}  // namespace tessera
