// SPDX-License-Identifier: Apache-2.0
#include "src/tables/reserved_memory.h"

#include "src/common/check.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdlib>

namespace tessera {

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
#ifdef MADV_HUGEPAGE
  // This is only a hint. Without huge pages, access is slower.
  if (data_ != nullptr) {
    ::madvise(data_, bytes, MADV_HUGEPAGE);
  }
#endif
#else
  data_ = std::calloc(bytes, 1);
#endif
  TESSERA_CHECK(
      data_ != nullptr,
      "[DynamicKeys] {} need {} MiB of addresses, but the system can't reserve them. Lower the capacity.",
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
